"""Photographs in memory, as large as the crops of training need them.

Views are made as for streamed images, from the same random numbers, but without decoding the images again. Where an
image is not larger than what crops need, the views are the same to the bit.
"""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from us3l.data.augment import ASPECT
from us3l.data.contents import Contents
from us3l.data.crops import reduction, resized, unreadable
from us3l.data.decode import Damaged, Encoded, Reduced, decode, measure
from us3l.data.images import Batch, ImageSet
from us3l.data.in_memory import Counter, check_memory, made_of_each
from us3l.data.preprocessing import Preprocessing
from us3l.data.streamed import ImageFiles
from us3l.data.view_settings import Views


@dataclass(frozen=True)
class CachedImages(ImageFiles):
    """Images of any shapes in memory, for training; whatever else is asked for is read from their files."""

    files: ImageFiles | None = None

    @property
    def originals(self) -> ImageFiles:
        assert self.files is not None
        return replace(self.files, chosen=self.chosen)

    def sample(self, count: int, generator: torch.Generator, side: int | None = None) -> ImageSet:
        return self.originals.sample(count, generator, side)

    def batches(
        self, preprocessing: Preprocessing, batch_size: int = 250, workers: int | None = None
    ) -> Iterator[Batch]:
        return self.originals.batches(preprocessing, batch_size, workers)

    def readers_for(self, device: torch.device | None) -> int:
        """Processes only cut, and only for a GPU; they must be forks, which share this memory."""
        alone = device is None or device.type == "cpu" or multiprocessing.get_start_method() != "fork"
        return 0 if alone else super().readers_for(device)

    def fingerprint(self) -> list[int]:
        return self.originals.fingerprint()

    def read_contents(self, progress: Counter | None = None) -> Contents:
        return self.originals.read_contents(progress)

    def changed_since(self, before: Contents, progress: Counter | None = None) -> list[str]:
        return self.originals.changed_since(before, progress)


@dataclass(frozen=True)
class _Memory:
    """Where the kept images are."""

    places: np.ndarray
    """Their rising indices in the source."""
    images: Sequence[Reduced | Damaged]

    def read(self, indices: np.ndarray) -> Iterator[Encoded]:
        return (self.images[place] for place in np.searchsorted(self.places, indices))


def cache_all(files: ImageFiles, views: Views, progress: Counter | None = None) -> CachedImages:
    """All images in memory, reduced to what crops need; damaged ones are known from now on.

    Args:
        files: What to decode.
        views: The size of views and their smallest crop decide how large images are kept.
        progress: Called with the number of images decoded so far, and of all.
    """
    usable = check_memory(cached_bytes(files.shapes(), len(files), views), files.name)
    held = 0
    images: list[Reduced | Damaged] = []
    for image in made_of_each(files, lambda encoded: _reduced(encoded, views)):
        images.append(image)
        held += image.pixels.nbytes if isinstance(image, Reduced) else 0
        if held > usable:
            check_memory(round(held * len(files) / len(images)), files.name)
        if progress:
            progress(len(images), len(files))
    names = (files.source.name(index) for index in files.chosen)
    skipped = [f"{name}: {image}" for name, image in zip(names, images, strict=True) if isinstance(image, Damaged)]
    if len(skipped) == len(files):
        raise unreadable(files.name, skipped)
    source = replace(files.source, read=_Memory(files.chosen, images).read, statuses=None)
    return CachedImages(files.name, source, files.chosen, skipped, files)


def cached_shape(height: int, width: int, views: Views) -> tuple[int, int]:
    """The height and width that an image is reduced to: its smallest crop has the pixels of a view.

    >>> cached_shape(3000, 4000, Views(size=64)), cached_shape(160, 160, Views(size=64))
    ((143, 191), (160, 160))
    """
    shortest = math.sqrt(views.crop_scale[0] * ASPECT[0] * height * width)
    ratio = min(1.0, views.size / shortest)
    return max(1, round(ratio * height)), max(1, round(ratio * width))


def cached_bytes(shapes: Sequence[tuple[int, int]], count: int, views: Views) -> int:
    """The memory that images would take.

    Args:
        shapes: Heights and widths of a sample of them.
        count: How many there are.
        views: See `cache_all`.
    """
    if are_small(shapes, views):
        return count * 3 * views.size**2
    sizes = [3 * math.prod(cached_shape(*shape, views)) for shape in shapes]
    return round(count * sum(sizes) / max(1, len(sizes)))


def are_small(shapes: Sequence[tuple[int, int]], views: Views) -> bool:
    """Whether images are squares of one size, no larger than a view: each crop has all there is of them."""
    return len(set(shapes)) == 1 and all(height == width <= views.size for height, width in shapes)


def _reduced(encoded: Encoded, views: Views) -> Reduced:
    """What is kept of an image."""
    height, width = measure(encoded)
    shape = cached_shape(height, width, views)
    by = reduction([(0, 0, height, width)], 2 * min(shape), height * width)  # a margin of two, as for evaluation
    pixels = decode(encoded, by=by)
    if pixels.shape[:2] != shape:
        pixels = resized(pixels, (0, 0, *pixels.shape[:2]), shape).permute(1, 2, 0).contiguous().numpy()
    return Reduced(pixels, height, width)
