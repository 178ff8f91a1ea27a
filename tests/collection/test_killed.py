"""A full disk, and a kill in the middle, of the commands that write what a network makes of images."""

import os
import resource
import signal
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from PIL import Image

import us3l
from us3l.collection import embedding
from us3l.collection.vectors import parts_folder
from us3l.commands.main import main
from us3l.run import Run
from us3l.run.linear_maps import Probes, probes_file, write_probes


@pytest.fixture(scope="module")
def run(small, tmp_path_factory):
    """A model with a classifier."""
    folder = tmp_path_factory.mktemp("run")
    small.save(folder / "model")
    linear = {1.0: (torch.randn(2, 64), torch.zeros(2))}
    write_probes(probes_file(Run(folder), "made"), Probes(linear, ["a", "b"], "made", Run(folder).weights))
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder, draw = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for number in range(10):
        Image.fromarray(draw.integers(0, 256, (16, 16, 3), np.uint8)).save(folder / f"{number}.png")
    return folder


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """Two images in a batch, and one batch in a part."""
    monkeypatch.setattr(embedding, "BATCH", 2)
    monkeypatch.setattr(embedding, "PART", 1)


@contextmanager
def files_of_at_most(size):
    """The system lets no file grow beyond this."""
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, unlimited[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)


@pytest.mark.parametrize("size", [100, 4000])  # nothing can be begun; parts have room, the whole file does not
def test_a_full_disk_while_embedding_is_one_line_and_loses_nothing(run, photos, tmp_path, capsys, size):
    whole = us3l.embed(run, photos, out=tmp_path / "whole.parquet").path
    out = tmp_path / "e.parquet"
    with files_of_at_most(size):
        assert main(["embed", str(run), str(photos), "--out", str(out)]) == 2
    said = capsys.readouterr().err
    assert "e.parquet" in said
    assert "File too large" in said
    assert said.count("\n") == 1
    assert not out.exists()
    assert len([*parts_folder(out).glob("*.parquet")]) == (5 if size > 1000 else 0)
    assert us3l.embed(run, photos, out=out).computed == (0 if size > 1000 else 10)
    assert out.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize(
    "command", ["predict {run} {photos} --out {out}", "find {index} {photos} --run {run} --page {out}"]
)
def test_a_full_disk_at_the_end_is_one_line_and_the_old_file_stays(run, photos, tmp_path, capsys, command):
    index = us3l.embed(run, photos, out=tmp_path / "index.parquet").path
    out = tmp_path / ("classes.csv" if "predict" in command else "found.html")
    out.write_text("old")
    with files_of_at_most(100):
        words = command.format(run=run, photos=photos, out=out, index=index).split()
        assert main([*words, "--overwrite"]) == 2
    said = capsys.readouterr().err
    assert f"{out}: File too large" in said
    assert said.count("\n") == 1
    assert out.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([index.name, out.name])


def killed(call, monkeypatch, batch):
    """Make the call in another process, which is killed at a batch."""
    batches = iter(range(100))
    embed = embedding.EmbeddingJob._embedded

    def until(self, read):
        if next(batches) == batch:
            os.kill(os.getpid(), signal.SIGKILL)
        return embed(self, read)

    monkeypatch.setattr(embedding.EmbeddingJob, "_embedded", until)
    child = os.fork()
    if child == 0:
        try:
            call()
        finally:
            os._exit(1)
    monkeypatch.undo()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def test_embedding_goes_on_after_a_kill(run, photos, tmp_path, monkeypatch):
    whole = us3l.embed(run, photos, out=tmp_path / "whole.parquet").path
    with monkeypatch.context() as patched:
        killed(lambda: us3l.embed(run, photos, out=tmp_path / "e.parquet"), patched, 3)
    assert not (tmp_path / "e.parquet").exists()
    again = us3l.embed(run, photos, out=tmp_path / "e.parquet")
    assert again.computed == 10 - 3 * 2
    assert again.path.read_bytes() == whole.read_bytes()


def test_a_kill_while_predicting_leaves_the_old_file(run, photos, tmp_path, monkeypatch):
    out = tmp_path / "classes.csv"
    us3l.predict(run, photos, out=out)
    before = out.read_bytes()
    with monkeypatch.context() as patched:
        killed(lambda: us3l.predict(run, photos, out=out, overwrite=True), patched, 3)
    assert out.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["classes.csv"]
    us3l.predict(run, photos, out=out, overwrite=True)
    assert out.read_bytes() == before
