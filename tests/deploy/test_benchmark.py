"""The script that goes along with a bundle."""

import base64
import csv
import json
import shutil

import numpy as np
import pytest

import us3l
from us3l.deploy import benchmark
from us3l.deploy.exporting import BROWSER, COMPANIONS, place_companions
from us3l.deploy.latency import read_device_profile
from us3l.run.bundles import encode_floats, read_bundle


@pytest.fixture
def folder(small, tmp_path):
    us3l.export(small, (0.25, 1.0), "torch", out=tmp_path / "bundle", data="digits")
    return tmp_path / "bundle"


def test_its_table_is_what_a_profile_reads(folder, small, capsys):
    assert set(COMPANIONS) == set(read_bundle(folder).others)
    benchmark.main(["--folder", str(folder), "--seconds", "0", "--batch", "1", "2"])
    said = capsys.readouterr().out
    assert said.count("p95") == 4
    assert said.count("differs from the outputs of the export by 0e+00") == 2
    found = read_device_profile(small, folder / "latencies.csv")
    assert {(row.width, row.backend, row.batch) for row in found} == {
        (width, "torch", batch) for width in (0.25, 1.0) for batch in (1, 2)
    }
    with open(folder / "latencies.csv", newline="") as file:
        assert next(csv.reader(file)) == ["width", "backend", "batch", "p50_ms", "p95_ms"]


def test_a_device_that_computes_something_else_is_told(folder, capsys):
    manifest = json.loads((folder / "manifest.json").read_text())
    first, last = (next(iter(entry["files"])) for entry in manifest["entries"])
    reference = np.frombuffer(base64.b64decode(manifest["entries"][0]["reference"]), "<f4").copy()
    reference[3] += 1e-3 * max(1, np.abs(reference).max())
    manifest["entries"][0]["reference"] = encode_floats(reference.tolist())
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(SystemExit, match="outputs here are not those of the export") as stopped:
        benchmark.main(["--folder", str(folder), "--seconds", "0"])
    assert str(stopped.value).startswith(f"{first}: ")
    assert last not in str(stopped.value)
    assert f"{first}: differs from the outputs of the export by 1e-03" in capsys.readouterr().out


@pytest.mark.parametrize(("turned", "good"), [(0.1, True), (0.5, False)])
def test_int8_may_differ_more(turned, good):
    expected = np.array([1.0, 0.0], np.float32)
    about = {"int8": True, "preprocessing": {"size": 4, "resize": 4, "mean": [0, 0, 0], "std": [1, 1, 1]}}
    found, said = benchmark.check(
        lambda _: np.array([[np.cos(turned), np.sin(turned)]], np.float32), about, COMPANIONS["check.png"], expected
    )
    assert found == good
    assert said == f"cosine {np.cos(turned):.4f} with the outputs of the export"


def test_files_whose_runtime_is_missing_are_left_out(folder, monkeypatch, capsys):
    def missing(_):
        raise ImportError("no torch here")

    monkeypatch.setitem(benchmark.OPENERS, ".pt2", missing)
    with pytest.raises(SystemExit, match="no network could be run here"):
        benchmark.main(["--folder", str(folder)])
    assert "left out (no torch here)" in capsys.readouterr().out


def test_int8_has_a_row_of_its_own_and_heads_none(tmp_path):
    entries = [
        {"width": 0.5, "format": "onnx", "int8": False, "head": None, "files": {"a.onnx": ""}},
        {"width": 0.5, "format": "onnx", "int8": True, "head": None, "files": {"b.onnx": ""}},
        {"width": 0.5, "format": "onnx", "int8": False, "head": "probe-x", "files": {"c.onnx": ""}},
    ]
    (tmp_path / "manifest.json").write_text(json.dumps({"entries": entries}))
    found = benchmark.networks(tmp_path)
    assert {key: path.name for key, path in found.items()} == {
        ("0.5", "onnx"): "a.onnx",
        ("0.5", "onnx-int8"): "b.onnx",
    }


def test_scripts_that_others_wrote_stay(tmp_path):
    (tmp_path / "benchmark.py").write_text("mine")
    assert set(place_companions(tmp_path, "torch")) == {"example.py", "check.png"}
    assert (tmp_path / "benchmark.py").read_text() == "mine"
    shutil.copy(COMPANIONS["benchmark.py"], tmp_path / "benchmark.py")
    assert set(place_companions(tmp_path, "torch")) == set(COMPANIONS)
    assert set(place_companions(tmp_path, "onnx")) == {*COMPANIONS, *BROWSER}
    assert set(place_companions(tmp_path, "torch")) == {*COMPANIONS, *BROWSER}  # still there
