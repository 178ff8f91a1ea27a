import io
import shutil
import tarfile
import tracemalloc
from contextlib import nullcontext

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import us3l
from us3l.collection import embedding
from us3l.collection.vectors import parts_folder, read_embeddings
from us3l.commands.main import main
from us3l.deploy.profiling import all_costs
from us3l.run import Run
from us3l.run.profiles import Latency, Profile, write_profile
from us3l.runtime.runtime import Runtime
from us3l.system.errors import UserError
from us3l.system.stopping import Interrupted

BAD = "b/3.png"


@pytest.fixture(scope="module")
def run(small, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    small.save(folder / "model")
    write_profile(Run(folder), Profile(16, all_costs(small, 16), [Latency(0.25, "torch", 1, 1, 2)], name="desk"))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Photographs of two classes, in shapes of their own, one of them damaged."""
    place, draw = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for label in "ab":
        (place / label).mkdir()
        for number in range(7):
            pixels = draw.integers(0, 256, (20 + number, 24, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(place / label / f"{number}.png")
    (place / BAD).write_bytes(b"not an image")
    return place


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    """Four images in a batch, two batches in a part."""
    monkeypatch.setattr(embedding, "BATCH", 4)
    monkeypatch.setattr(embedding, "PART", 2)


def of_runtime(model, folder, width, backend="auto"):
    """What the runtime gives for those images that can be read."""
    with pytest.warns(UserWarning, match="1 of 14 images could not be used"):
        values = Runtime(model, backend).embed(folder, width=width, on_error="nan", batch_size=4)
    return values[~np.isnan(values).any(1)]


@pytest.mark.parametrize("backend", ["torch", "onnx", "openvino"])
@pytest.mark.parametrize("width", [0.5, 1.0])
def test_the_values_are_those_of_the_runtime_to_the_bit(run, bundle, folder, backend, width):
    model = run if backend == "torch" else bundle
    found = us3l.embed(model, folder, width=width, backend=backend)
    np.testing.assert_array_equal(found.embeddings.values, of_runtime(model, folder, width, backend))
    assert found.embeddings.files == [
        f"{label}/{n}.png" for label in "ab" for n in range(7) if f"{label}/{n}.png" != BAD
    ]
    assert found.embeddings.labels == ["a"] * 7 + ["b"] * 6
    assert found.damaged == [f"{BAD}: not an image"]
    assert found.rows[0]["label"] == "a"


def test_a_file_is_the_same_whether_its_making_was_stopped_or_not(run, folder, tmp_path, monkeypatch):
    whole = us3l.embed(run, folder, out=tmp_path / "whole.parquet")
    np.testing.assert_array_equal(whole.embeddings.values, us3l.embed(run, folder).embeddings.values)
    path = tmp_path / "stopped.parquet"
    stops = iter([False, False, True])
    with monkeypatch.context() as patched:
        patched.setattr(embedding, "stop_requests", lambda _: nullcontext(lambda: next(stops)))
        with pytest.raises(Interrupted, match="12 of 14 images"):
            us3l.embed(run, folder, out=path)
    assert [part.name for part in sorted(parts_folder(path).glob("*.parquet"))] == ["000000.parquet"]
    again = us3l.embed(run, folder, out=path)
    assert again.computed == 14 - 8
    assert path.read_bytes() == whole.path.read_bytes()
    assert again.damaged == whole.damaged
    assert path.with_name(f"{path.name}.damaged.txt").read_text() == f"{BAD}: not an image\n"
    assert us3l.embed(run, folder, out=path).computed == 0  # nothing is left to do


def test_going_on_asks_for_the_same_weights_width_and_images(run, folder, tmp_path):
    out = tmp_path / "e.parquet"
    us3l.embed(run, folder, out=out, width=0.5)
    with pytest.raises(UserError, match="already exists"):
        us3l.embed(run, folder, out=out, width=1.0)
    more = shutil.copytree(folder, tmp_path / "photos")
    (more / "a" / "0.png").unlink()
    with pytest.raises(UserError, match="already exists"):
        us3l.embed(run, more, out=out, width=0.5)
    changed = us3l.load(run / "model")
    with torch.no_grad():
        next(changed.full.parameters()).mul_(1.01)
    us3l.calibrate(changed, torch.randn(32, 3, 16, 16))
    with pytest.raises(UserError, match="already exists"):
        us3l.embed(changed, folder, out=out, width=0.5)
    assert us3l.embed(changed, folder, out=out, width=0.5, overwrite=True).computed == 14


def test_every_kind_of_source(run, folder, tmp_path):
    files = [folder / f"a/{number}.png" for number in range(7)]
    wanted = us3l.embed(run, files).embeddings
    assert wanted.labels is None
    assert wanted.files == list(map(str, files))
    encoded = [{"bytes": file.read_bytes(), "path": None} for file in files]
    pq.write_table(
        pa.table({"image": encoded, "label": ["x", "y", None, *"xxyy"]}), tmp_path / "p.parquet", row_group_size=3
    )
    with tarfile.open(tmp_path / "s.tar", "w") as tar:
        for file in files:
            info = tarfile.TarInfo(f"{file.stem}.png")
            info.size = file.stat().st_size
            tar.addfile(info, io.BytesIO(file.read_bytes()))
    for name, first in (("p.parquet", "p.parquet row 0"), ("s.tar", "s.tar: 0.png")):
        found = us3l.embed(run, tmp_path / name).embeddings
        np.testing.assert_array_equal(found.values, wanted.values)
        assert found.files[0] == first
        assert found.labels == (["x", "y", None, *"xxyy"] if name == "p.parquet" else None)


def test_every_image_of_all_splits_unless_one_is_named(run, folder, tmp_path):
    for part in ("train", "test"):
        shutil.copytree(folder, tmp_path / part)
    assert [us3l.embed(run, tmp_path, split=split).images for split in ("every", "train", "test")] == [28, 14, 14]


def test_a_time_chooses_the_width_by_the_profile(run, bundle, folder):
    assert us3l.embed(run, folder, latency_ms=3).width == 0.25
    with pytest.raises(UserError, match="nothing fits"):
        us3l.embed(run, folder, latency_ms=1)
    with pytest.raises(UserError, match="not both"):
        us3l.embed(run, folder, latency_ms=1, width=0.5)
    assert us3l.embed(bundle, folder, latency_ms=1e6).width == 1.0


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("--width 0.1 --out e.parquet", "0.1"),
        ("--out e.txt", "ends with .parquet"),
        ("--latency-ms 1 --out e.parquet", "nothing fits"),
        ("--backend onnx --out e.parquet", "exported files"),
    ],
)
def test_what_is_wrong_is_one_line(run, folder, tmp_path, monkeypatch, capsys, arguments, line):
    monkeypatch.chdir(tmp_path)
    assert main(["embed", str(run), str(folder), *arguments.split()]) == 2
    said = capsys.readouterr().err
    assert line in said
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_weights_that_give_no_numbers_are_an_error(small, folder, tmp_path):
    small.save(tmp_path / "model")
    net = us3l.load(tmp_path / "model")
    with torch.no_grad():
        next(net.full.parameters()).fill_(float("nan"))
    us3l.calibrate(net, torch.randn(32, 3, 16, 16))
    for call in (us3l.embed, lambda net, folder: Runtime(net).embed(folder / "a")):
        with pytest.raises(UserError, match="not finite numbers"):
            call(net, folder)
    with pytest.raises(UserError, match="not finite numbers"):
        us3l.embed(net, folder, out=tmp_path / "e.parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_an_empty_folder_and_one_without_a_good_image(run, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert main(["embed", str(run), str(tmp_path / "empty"), "--out", str(tmp_path / "e.parquet")]) == 2
    assert "no images in this folder" in capsys.readouterr().err
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "x.png").write_bytes(b"")
    assert main(["embed", str(run), str(tmp_path / "bad"), "--out", str(tmp_path / "e.parquet")]) == 2
    assert "none of 1 images can be read" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad", "empty"]


def test_the_command_tells_what_it_did(run, folder, tmp_path, capsys):
    assert main(["embed", str(run), str(folder), "--width", "0.5x", "--out", str(tmp_path / "e.parquet")]) == 0
    said = capsys.readouterr().out
    assert "skipped 1 damaged images" in said
    assert BAD in said
    assert "13 of 14 images embedded, 1 are damaged" in " ".join(said.split())
    assert "images/s" in said
    assert len(read_embeddings(tmp_path / "e.parquet")) == 13


def test_memory_does_not_grow_with_the_images(run, tmp_path, monkeypatch):
    """A small version of `python -m benchmarks.embedding`."""
    monkeypatch.setattr(embedding, "BATCH", 8)
    long = np.zeros((8, 2048), np.float32)
    monkeypatch.setattr(
        "us3l.runtime.networks.SlimmableNetworks.run", lambda *_: lambda images: long[: len(images)].copy()
    )
    peaks = []
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(buffer, "PNG")
    for count in (64, 384):
        path = tmp_path / f"{count}.parquet"
        pq.write_table(
            pa.table({"image": [{"bytes": buffer.getvalue(), "path": None}] * count}), path, row_group_size=64
        )
        tracemalloc.start()
        us3l.embed(run, path, out=tmp_path / f"embedded-{count}.parquet", width=0.25)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 320 * long[0].nbytes / 4  # what is known of each image takes some bytes
