"""Runs on images that are read while they train."""

from dataclasses import replace

import pytest
import torch
from lightning_fabric import Fabric
from PIL import Image

from us3l.cli.main import main
from us3l.data.sources import find, load
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
    losses = [torch.stack(whole.train_step()).tolist() for _ in range(whole.steps)]
    first = [torch.stack(half.train_step()).tolist() for _ in range(2)]
    resumed.load_state(half.state())
    assert resumed.per_epoch == 3
    assert losses == first + [torch.stack(resumed.train_step()).tolist() for _ in range(4)]


def test_every_image_of_an_epoch_is_seen_once_and_labels_belong_to_their_images(folder):
    ours = streaming(folder, RECIPE.with_method("us-net"))
    seen = []
    for _ in range(3):
        batch = ours.take_batch()
        assert torch.equal(batch.labels, ours.images.labels[batch.indices])
        seen += batch.indices.tolist()
        ours.step += 1
    assert len(set(seen)) == len(seen) == 24
    sample = ours.images.sample(30, torch.Generator().manual_seed(0))
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
    log = (tmp_path / "run" / "train.log").read_text()
    assert "skipped" in log
