"""Runs on images that are read while they train."""

import gc
import itertools
import multiprocessing
import shutil
import tarfile
import weakref
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from lightning_fabric import Fabric
from PIL import Image

from us3l.commands.main import main
from us3l.data import streamed
from us3l.data.cached import CachedImages
from us3l.data.images import Step
from us3l.data.sources import find, load, open_for_training
from us3l.run import Run
from us3l.run.training_log import read_speeds
from us3l.system.errors import UserError
from us3l.training.failures import check_damaged, note_damaged
from us3l.training.recipes import MINI, Network
from us3l.training.trainer import Trainer

RECIPE = replace(
    MINI,
    network=Network(base=8),
    objective=replace(MINI.objective, hidden=16, predictor=16, dim=8),
    views=replace(MINI.views, size=8),
    batch_size=8,
    epochs=2,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Digits as files, in a folder for each class."""
    folder = tmp_path_factory.mktemp("files")
    digits = load("digits", limit=30)
    for number, (image, label) in enumerate(zip(digits.images, digits.labels, strict=True)):
        path = folder / str(int(label)) / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).resize((12 + number % 3, 14)).save(path)
    return folder


def streaming(folder, recipe=RECIPE):
    return Trainer(recipe, find(folder, "all"), Fabric(accelerator="cpu"))


def test_a_streamed_run_resumes_in_the_middle_of_an_epoch(folder):
    whole, half, resumed = (streaming(folder) for _ in range(3))
    losses = [torch.stack(whole.train_step().losses).tolist() for _ in range(whole.steps)]
    first = [torch.stack(half.train_step().losses).tolist() for _ in range(2)]
    resumed.load_state(half.state())
    assert resumed.per_epoch == 3
    assert losses == first + [torch.stack(resumed.train_step().losses).tolist() for _ in range(4)]


def test_a_forgotten_run_ends_its_processes_in_order(folder, monkeypatch):
    """Not by the garbage collector, which closes the pipes to them first: files of others could be closed for them."""
    monkeypatch.setenv("US3L_WORKERS", "1")
    before = set(multiprocessing.active_children())
    ours = streaming(folder, replace(RECIPE, objective=replace(RECIPE.objective, sub_crop=0.9)))
    ours.step = 3
    ours.train_step()
    readers = set(multiprocessing.active_children()) - before
    forgotten = weakref.ref(ours)
    del ours
    gc.collect()
    assert forgotten() is None
    assert len(readers) == 1  # one set of them, for all views
    assert not any(reader.is_alive() for reader in readers)


def test_every_image_of_an_epoch_is_seen_once_and_labels_belong_to_their_images(folder):
    ours = streaming(folder, RECIPE.with_method("us-net"))
    seen = []
    for _ in range(3):
        batch = ours.take_batch()
        assert torch.equal(batch.labels, ours.images.labels[batch.indices])
        seen += batch.indices.tolist()
        ours.step += 1
    assert len(set(seen)) == len(seen) == 24
    sample = ours.images.sample(30, torch.Generator().manual_seed(0), 8)
    assert sorted(sample.labels.tolist()) == sorted(ours.images.labels.tolist())
    assert sample.labels.tolist() != sorted(sample.labels.tolist())


def test_files_that_changed_are_noticed(folder, tmp_path):
    ours = streaming(folder)
    state = ours.state()
    assert streaming(folder).images.fingerprint() == state["data"]
    Image.new("RGB", (9, 9)).save(tmp_path / "one.png")
    assert (
        Trainer(
            replace(RECIPE, batch_size=2), find(folder, "all", limit=29), Fabric(accelerator="cpu")
        ).images.fingerprint()
        != (state["data"])
    )


@pytest.mark.parametrize("streamed", [False, True])
def test_a_damaged_image_never_changes_the_views_of_the_others(folder, tmp_path, streamed):
    bad = 7  # its place among all
    broken = tmp_path / "photos"
    shutil.copytree(folder, broken)
    sorted(broken.rglob("*.png"))[bad].write_bytes(b"no image")

    whole, hurt = (find(root, "all") if streamed else load(root, "all", 8) for root in (folder, broken))
    assert whole.total == hurt.total == 30
    places = hurt.order(torch.Generator().manual_seed(1))
    assert torch.equal(places, whole.order(torch.Generator().manual_seed(1)))
    steps = [Step(number, 0, indices) for number, indices in enumerate(places.split(8))]
    damaged = list(hurt.skipped)
    both = (images.views(RECIPE.views, steps, seed=2) for images in (whole, hurt))
    for expected, found in zip(*both, strict=True):
        good = expected.indices != bad
        assert len(found) == len(expected)
        assert bad not in found.indices
        assert torch.equal(found.indices[good], expected.indices[good])
        assert torch.equal(found.labels[good], expected.labels[good])
        assert all(torch.equal(one[good], other[good]) for one, other in zip(found.views, expected.views, strict=True))
        damaged += found.damaged
    assert len(damaged) == 1
    assert len(hurt.sample(30, torch.Generator().manual_seed(0), 8)) == 29


def test_damaged_images_are_listed_once_over_several_sittings(tmp_path):
    path = tmp_path / "damaged.txt"
    assert note_damaged(path, []) == []
    assert not path.exists()
    assert note_damaged(path, ["a.png: no image", "\udcff.png: cut\nshort"]) == [
        "a.png: no image",
        "\udcff.png: cut short",
    ]
    assert len(note_damaged(path, ["a.png: no image", "b.png: no image"])) == 3
    assert path.read_bytes() == b"a.png: no image\n\xff.png: cut short\nb.png: no image\n"


def test_a_limit_of_damaged_images():
    check_damaged("photos", ["a.png: no image"], 1)
    with pytest.raises(UserError, match=r"photos: 2 images cannot be read, such as b\.png.*\(`max_bad_images"):
        check_damaged("photos", ["a.png: no image", "b.png: no image"], 1)


def test_a_run_on_shards_resumes_in_the_middle_of_an_epoch(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(streamed, "WINDOW_IMAGES", 8)
    files = sorted(folder.rglob("*.png"))
    for shard in range(5):
        with tarfile.open(tmp_path / f"{shard}.tar", "w") as archive:
            for path in files[6 * shard : 6 * shard + 6]:
                archive.add(path, path.name)
    whole, half, resumed = (streaming(tmp_path) for _ in range(3))
    losses = [torch.stack(whole.train_step().losses).tolist() for _ in range(4)]
    first = [torch.stack(half.train_step().losses).tolist() for _ in range(2)]
    resumed.load_state(half.state())
    assert losses == first + [torch.stack(resumed.train_step().losses).tolist() for _ in range(2)]
    nearby = [len({int(index) // 6 for index in batch}) for batch in (step.indices for step in whole.epoch(0))]
    assert max(nearby) <= 4  # a batch lies in one window, or at the border of two


def test_the_command_streams_and_names_damaged_images(folder, tmp_path, capsys):
    copied = tmp_path / "photos"
    for path in folder.rglob("*.png"):
        target = copied / path.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    for path in sorted(copied.rglob("*.png"))[::5]:
        path.write_bytes(b"no image")
    settings = "--base 8 --size 8 --hidden 16 --predictor 16 --dim 8 --batch-size 8 --epochs 1 --calibration 16".split()
    assert main(["pretrain", str(copied), "--out", str(tmp_path / "run"), "--stream", *settings]) == 0
    assert "the model is in" in capsys.readouterr().out
    (speed,) = read_speeds(Run(tmp_path / "run"))
    assert (speed.epoch, speed.images) == (1, 16)
    assert 0 < speed.waited < speed.seconds
    log = (tmp_path / "run" / "train.log").read_text()
    assert "skipped" in log


def test_images_that_vanish_in_the_middle_of_a_run_are_said_and_recorded(folder, tmp_path, monkeypatch, capsys):
    copied = tmp_path / "photos"
    shutil.copytree(folder, copied)
    gone = sorted(copied.rglob("*.png"))[::3]
    monkeypatch.setenv("US3L_WORKERS", "0")
    step = Trainer.train_step

    def remove_then_step(self):
        if self.step == 2:
            for path in gone:
                path.unlink(missing_ok=True)
        return step(self)

    monkeypatch.setattr(Trainer, "train_step", remove_then_step)
    settings = "--base 8 --size 8 --hidden 16 --predictor 16 --dim 8 --batch-size 8 --epochs 4 --calibration 16".split()
    run = Run(tmp_path / "run")
    assert main(["pretrain", str(copied), "--out", str(run.folder), "--stream", "--recipe", "mini", *settings]) == 0
    listed = run.damaged.read_text().splitlines()
    assert len(listed) > 2  # of those that it trains on
    assert f"{len(listed)} of 20 images cannot be read" in " ".join(capsys.readouterr().out.split())
    assert run.promised["damaged"] == len(listed)


def test_a_run_on_kept_photographs_resumes_in_the_middle_of_an_epoch(folder):
    """And sees what a streamed one sees: the images are no larger than crops need them."""
    images = open_for_training(folder, RECIPE.views)
    assert isinstance(images, CachedImages)

    def training(images):
        return Trainer(RECIPE, images, Fabric(accelerator="cpu"))

    whole, half, resumed, streamed = (training(images) for images in (images, images, images, images.originals))
    losses = [torch.stack(whole.train_step().losses).tolist() for _ in range(3)]
    first = torch.stack(half.train_step().losses).tolist()
    resumed.load_state(half.state())
    assert losses == [first] + [torch.stack(resumed.train_step().losses).tolist() for _ in range(2)]
    assert losses == [torch.stack(streamed.train_step().losses).tolist() for _ in range(3)]


@pytest.fixture
def bitmaps(tmp_path):
    """Images of one size in bytes, so that none can be told from another by that."""
    for number, image in enumerate(load("digits", limit=40).images):
        path = tmp_path / "bitmaps" / f"{number:02}.bmp"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).resize((14, 12)).save(path)
    return tmp_path / "bitmaps"


TINY = (
    "--recipe mini --base 8 --size 8 --hidden 8 --predictor 8 --dim 8 --batch-size 8 --epochs 2 --accelerator cpu "
    "--calibrated-widths 0.5 --calibration 16"
)


@pytest.mark.parametrize("stream", [True, False])
def test_a_run_does_not_go_on_with_other_images(bitmaps, stream, tmp_path, capsys, monkeypatch):
    """One of 40 was replaced by another of the same size, which is none of those that a fingerprint looks into."""

    @contextmanager
    def stop_soon(_):
        steps = itertools.count()
        yield lambda: next(steps) == 6

    out = ["--out", str(tmp_path / "run")]
    with monkeypatch.context() as patch:
        patch.setattr("us3l.training.loop.stop_requests", stop_soon)
        assert main(["pretrain", str(bitmaps), *TINY.split(), *(["--stream"] if stream else []), *out]) != 0
    before = (bitmaps / "06.bmp").read_bytes()
    (bitmaps / "06.bmp").write_bytes((bitmaps / "07.bmp").read_bytes())
    capsys.readouterr()
    assert main(["pretrain", *out, "--resume"]) == 2
    shown = " ".join(capsys.readouterr().err.split())
    assert "1 of 40 images have changed since this run began, such as 06.bmp: other bytes than before" in shown
    (bitmaps / "06.bmp").write_bytes(before)  # a new file to the system, with the bytes of the old one
    assert main(["pretrain", *out, "--resume"]) == 0


def test_images_that_are_overwritten_under_a_run_are_said_and_recorded(bitmaps, tmp_path, capsys, monkeypatch):
    take = Trainer.take_batch

    def changing(trainer):
        if trainer.step == trainer.per_epoch:
            (bitmaps / "20.bmp").write_bytes((bitmaps / "21.bmp").read_bytes())
        return take(trainer)

    monkeypatch.setattr(Trainer, "take_batch", changing)
    monkeypatch.setenv("US3L_WORKERS", "0")
    run = Run(tmp_path / "run")
    assert main(["pretrain", str(bitmaps), *TINY.split(), "--stream", "--out", str(run.folder)]) == 0
    assert "bitmaps: 1 images were overwritten since they were first read" in " ".join(capsys.readouterr().out.split())
    assert run.changed.read_text() == "20.bmp: other bytes than before\n"
    assert run.promised["changed"] == 1
