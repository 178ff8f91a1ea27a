"""Photographs in memory: as large as crops need them, and seen as if they were streamed."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from us3l.data import cached as keeping
from us3l.data import in_memory as memory
from us3l.data.cached import CachedImages, are_small, cached_bytes, cached_shape
from us3l.data.images import ImageSet, Step
from us3l.data.sources import find, load, open_for_training
from us3l.data.streamed import ImageFiles
from us3l.data.view_settings import Views
from us3l.system.errors import UserError

VIEWS = Views(size=16, blur=0.5)
STEPS = [Step(number, 3, torch.tensor(indices)) for number, indices in enumerate([[4, 1, 9], [0, 2, 7]])]


def write(root: Path, shapes: list[tuple[int, int]], kind: str = "png") -> Path:
    root.mkdir(exist_ok=True)
    random = np.random.default_rng(0)
    for number, (height, width) in enumerate(shapes):
        small = Image.fromarray(random.integers(0, 256, (6, 7, 3), np.uint8))
        small.resize((width, height), Image.Resampling.BICUBIC).save(root / f"{number:02}.{kind}")
    return root


def made(images: ImageSet | ImageFiles, seed: int = 1) -> list[Tensor]:
    return [view for batch in images.views(VIEWS, STEPS, seed) for view in batch.views]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Ten of about 40 pixels, which crops of 16 need in full, and two large ones."""
    return write(tmp_path / "photos", [(33 + number, 50 - number) for number in range(10)] + [(200, 300), (601, 400)])


def test_views_from_memory_are_those_of_streamed_images(photos: Path) -> None:
    kept, streamed = open_for_training(photos, VIEWS), open_for_training(photos, VIEWS, stream=True)
    assert isinstance(kept, CachedImages)
    assert type(streamed) is ImageFiles
    assert all(map(torch.equal, made(kept), made(streamed)))
    # Of large ones the same boxes, of images that were reduced before.
    large = [Step(epoch, epoch, torch.tensor([10, 11])) for epoch in range(10)]
    plain = replace(VIEWS, jitter=0, grey=0, blur=0)
    for mine, other in zip(kept.views(plain, large, 1), streamed.views(plain, large, 1), strict=True):
        assert torch.equal(mine.indices, other.indices)
        assert (mine.views[0] - other.views[0]).abs().mean() < 0.1  # other boxes differ by about 1


def estimated(files: ImageFiles) -> int:
    return cached_bytes(files.shapes(), len(files), VIEWS)


@pytest.mark.parametrize(("height", "width"), [(3000, 4000), (4000, 300), (120, 121), (30, 20), (1, 900)])
def test_the_smallest_crop_has_the_pixels_of_a_view(height: int, width: int) -> None:
    views = Views(size=64, crop_scale=(0.2, 1.0))
    rows, columns = cached_shape(height, width, views)
    assert rows <= height
    assert columns <= width
    assert abs(rows / columns - height / width) < 0.03 * height / width + 0.02 * (min(height, width) == 1)
    shortest = (0.2 * rows * columns * 3 / 4) ** 0.5
    assert shortest > 63 if rows < height else (rows, columns) == (height, width)
    assert shortest < 66


def test_small_squares_are_as_they_always_were(tmp_path: Path) -> None:
    """Runs on CIFAR or digits go on to the bit; also where they are enlarged."""
    for side in (16, 12):
        icons = write(tmp_path / str(side), [(side, side)] * 10)
        images = open_for_training(icons, VIEWS)
        assert isinstance(images, ImageSet)
        before = load(icons, "all", 16)
        assert torch.equal(images.images, memory.decode_all(find(icons, "all"), 16, exact=True).images)
        assert images.images.shape == before.images.shape
    assert isinstance(open_for_training("digits", VIEWS), ImageSet)
    assert not are_small(find(write(tmp_path / "17", [(17, 17)] * 3), "all").shapes(), VIEWS)
    assert not are_small(find(write(tmp_path / "two", [(12, 12), (13, 13)]), "all").shapes(), VIEWS)
    assert not are_small(find(write(tmp_path / "wide", [(12, 13)] * 2), "all").shapes(), VIEWS)


def test_more_than_the_bound_is_streamed(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = estimated(find(photos, "all"))
    kept = open_for_training(photos, VIEWS, memory=needed)
    assert isinstance(kept, CachedImages)
    assert sum(image.pixels.nbytes for image in kept.source.read(kept.chosen)) == needed  # all of 12 were looked at
    assert type(open_for_training(photos, VIEWS, memory=needed - 1)) is ImageFiles
    monkeypatch.setattr(memory, "available_memory", lambda: needed)
    with pytest.raises(UserError, match=r"more than half of the .* of memory available.*stream"):
        open_for_training(photos, VIEWS, memory=needed)


def test_an_estimate_that_was_too_low_ends_with_a_message(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = estimated(find(photos, "all"))
    monkeypatch.setattr(memory, "available_memory", lambda: needed)
    monkeypatch.setattr(keeping, "cached_bytes", lambda *_: 1)
    with pytest.raises(UserError, match="more than half of the"):
        keeping.cache_all(find(photos, "all"), VIEWS)


def test_damaged_images_are_known_at_once_and_replaced(photos: Path) -> None:
    whole = made(open_for_training(photos, VIEWS, stream=True))
    (photos / "01.png").write_bytes((photos / "01.png").read_bytes()[:70])
    kept = open_for_training(photos, VIEWS)
    streamed = open_for_training(photos, VIEWS, stream=True)
    assert len(kept.skipped) == 1
    assert kept.total == 12
    batches = list(kept.views(VIEWS, STEPS, 1))
    assert batches[0].damaged == list(kept.skipped)
    assert torch.equal(batches[0].views[0][[0, 2]], whole[0][[0, 2]])
    others = list(streamed.views(VIEWS, STEPS, 1))
    assert batches[0].damaged == others[0].damaged
    assert [batch.indices.tolist() for batch in batches] == [batch.indices.tolist() for batch in others]
    assert kept.fingerprint() == streamed.fingerprint()
    for path in photos.iterdir():
        path.write_bytes(b"no image")
    with pytest.raises(UserError, match=r"none of 12 images can be read; the first is 00\.png: not an image"):
        open_for_training(photos, VIEWS)


def test_whatever_is_not_a_view_comes_from_the_files(photos: Path) -> None:
    kept = open_for_training(photos, VIEWS)
    sample = kept.sample(12, torch.Generator().manual_seed(0), 40)
    expected = load(photos, "all", 40).images
    assert torch.equal(sample.images.sum(dim=(1, 2, 3)).sort().values, expected.sum(dim=(1, 2, 3)).sort().values)


def test_processes_share_the_memory(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = open_for_training(photos, VIEWS)
    assert isinstance(kept, CachedImages)
    alone = made(kept)
    for path in photos.iterdir():
        os.unlink(path)
    two = [view for batch in kept.views(VIEWS, STEPS, 1, workers=2) for view in batch.views]
    assert all(map(torch.equal, alone, two))
    monkeypatch.setenv("US3L_WORKERS", "3")
    assert [kept.readers_for(torch.device(device)) for device in ("cpu", "cuda", "meta")] == [0, 3, 3]
    assert kept.readers_for(None) == 0
    monkeypatch.setattr("multiprocessing.get_start_method", lambda: "spawn")
    assert kept.readers_for(torch.device("cuda")) == 0


@pytest.mark.parametrize("count", [1, 7, 300, 5000])
def test_a_few_hundred_images_are_measured(count: int) -> None:
    looked: list[int] = []

    def read(indices: np.ndarray) -> object:
        looked.extend(indices.tolist())
        return (np.zeros((2, 3, 3), np.uint8) for _ in indices)

    pixels = find(torch.zeros(count, 3, 2, 3, dtype=torch.uint8), "all")
    files = replace(pixels, source=replace(pixels.source, read=read))
    reading: Callable[[], list[tuple[int, int]]] = files.shapes
    assert set(reading()) == {(2, 3)}
    assert len(looked) == min(count, 256) == len(set(looked))
    assert looked == sorted(looked)
