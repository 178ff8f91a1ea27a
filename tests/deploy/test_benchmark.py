"""The script that goes along with a bundle."""

import csv
import json
import shutil

import pytest

import us3l
from us3l.deploy import benchmark
from us3l.deploy.device_table import read_device_profile
from us3l.deploy.export import COMPANIONS, place_companions
from us3l.run.bundles import read_bundle


@pytest.fixture
def folder(small, tmp_path):
    us3l.export(small, (0.25, 1.0), "torch", out=tmp_path / "bundle", data="digits")
    return tmp_path / "bundle"


def test_its_table_is_what_a_profile_reads(folder, small, capsys):
    assert {"example.py", "benchmark.py"} == set(read_bundle(folder).others)
    benchmark.main(["--folder", str(folder), "--seconds", "0", "--batch", "1", "2"])
    said = capsys.readouterr().out
    assert said.count("p95") == 4
    found = read_device_profile(small, folder / "latencies.csv")
    assert {(row.width, row.backend, row.batch) for row in found} == {
        (width, "torch", batch) for width in (0.25, 1.0) for batch in (1, 2)
    }
    with open(folder / "latencies.csv", newline="") as file:
        assert next(csv.reader(file)) == ["width", "backend", "batch", "p50_ms", "p95_ms"]


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
    assert set(place_companions(tmp_path)) == {"example.py"}
    assert (tmp_path / "benchmark.py").read_text() == "mine"
    shutil.copy(COMPANIONS["benchmark.py"], tmp_path / "benchmark.py")
    assert set(place_companions(tmp_path)) == set(COMPANIONS)
