"""What a worker does with the images of a batch: read, decode and cut. What is done by the batch it leaves to others.

What an image looks like depends on (seed, epoch, the image) alone, never on the workers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset

from us3l.data.augment import DRAWN, crop_box
from us3l.data.contents import UNKNOWN
from us3l.data.decode import MOST_PIXELS, Damaged, Encoded, Reduced, decode, fetch, measure
from us3l.data.images import kinds_of_views, stand_ins
from us3l.data.view_settings import Views
from us3l.system.errors import UserError
from us3l.system.seeds import seeded

if TYPE_CHECKING:
    from us3l.data.streamed import ImageFiles

Box = tuple[int, int, int, int]
"""Top, left, height and width."""
Item = tuple[int, list[int]]
"""An epoch, and the images to read."""


class Crops(NamedTuple):
    """What was cut from one image."""

    pixels: list[Tensor]
    """Of each view 3 x S x S, uint8."""
    uniform: np.ndarray
    """Of each view a row of random numbers."""
    boxes: np.ndarray
    """Of each view the box that it shows."""


class Read(NamedTuple):
    """The good images of a batch. Pixels cross from process to process as bytes: a quarter of the traffic of floats."""

    pixels: list[Tensor]
    """Of each view N x 3 x S x S, uint8."""
    uniform: np.ndarray
    """N x views x (`DRAWN` + 1): the random numbers of each view."""
    boxes: np.ndarray
    """N x views x 4."""
    indices: list[int]
    """Which images they are."""
    damaged: list[str]
    """The others, each with the reason."""
    contents: np.ndarray
    """M x 3, int64: of all images that were tried, stand-ins too, the index in the source, the hash and the status."""


class Reader(Dataset[Read | UserError], ABC):
    """Whole batches at a time, so that a parquet file's block is read once for all of its images in the batch."""

    fills = False
    """Whether others are read in the place of damaged ones."""

    def __init__(self, files: ImageFiles) -> None:
        self.files = files
        everything = np.arange(len(files.source))
        self.contents = files.source.contents[everything]  # its own, for files that it reads again

    def __getitem__(self, item: Item) -> Read | UserError:
        epoch, indices = item[0], list(item[1])
        try:
            made, damaged, contents = self.read(epoch, indices)
            for position in range(len(indices)) if self.fills else ():
                if position not in made:
                    self.fill(epoch, indices, position, made, damaged, contents)
        except UserError as error:  # raised in a worker it would come with a traceback
            return error
        good = sorted(made)
        if self.fills and len(good) < len(indices):
            return unreadable(self.files.name, damaged)
        every = [made[position] for position in good]
        pixels = [stacked(views) for views in zip(*(one.pixels for one in every), strict=True)]
        uniform, boxes = (np.stack([one[at] for one in every]) if every else np.empty(0) for at in (1, 2))
        kept = [indices[position] for position in good]
        return Read(pixels, uniform, boxes, kept, damaged, np.array(contents, np.int64).reshape(-1, 3))

    def read(self, epoch: int, indices: list[int]) -> tuple[dict[int, Crops], list[str], list[tuple[int, int, int]]]:
        """What was cut from good images, by their position; the damaged ones; and `Read.contents`."""
        by_place = sorted(range(len(indices)), key=lambda position: indices[position])
        chosen = self.files.chosen[[indices[position] for position in by_place]]
        source = self.files.source
        statuses = source.statuses(chosen) if source.statuses else np.zeros(len(chosen), np.int64)
        made: dict[int, Crops] = {}
        damaged, contents = [], []
        for position, index, status, encoded in zip(by_place, chosen, statuses, source.read(chosen), strict=True):
            content = UNKNOWN
            try:
                fetched = fetch(encoded)
                content = self.contents.hash_of(index, status, fetched)
                made[position] = self.cut(fetched, epoch, int(index))
            except Damaged as error:
                damaged.append(f"{source.name(index)}: {error}")
            if not isinstance(encoded, Reduced | Damaged):  # which were read before
                contents.append((int(index), content, int(status)))
        return made, damaged, contents

    def fill(
        self,
        epoch: int,
        indices: list[int],
        position: int,
        made: dict[int, Crops],
        damaged: list[str],
        contents: list[tuple[int, int, int]],
    ) -> None:
        """Put another image into the place of a damaged one."""
        for other in stand_ins(indices[position], len(self.files)):
            instead, more, read = self.read(epoch, [other])
            damaged += [name for name in more if name not in damaged]
            contents += read
            if instead:
                indices[position], made[position] = other, instead[0]
                return

    @abstractmethod
    def cut(self, encoded: Encoded, epoch: int, index: int) -> Crops:
        """What a batch needs of one image: each kind of reader has its own."""


class Squares(Reader):
    """Images as networks see them when they are not trained: centre squares of one size.

    With `exact`, they are resized as deployed networks see them, by `us3l.data.decode.decode`, which is slower.
    """

    def __init__(self, files: ImageFiles, size: int, exact: bool = False) -> None:
        super().__init__(files)
        self.size, self.exact = size, exact

    def cut(self, encoded: Encoded, *_: int) -> Crops:
        if self.exact:
            pixels = torch.from_numpy(decode(encoded, self.size).transpose(2, 0, 1).copy())
        else:
            pixels = square(encoded, self.size)
        return Crops([pixels], np.empty(0), np.empty(0))


class RandomCrops(Reader):
    """The crops that random views are made of; colours are left to whoever has the whole batch."""

    fills = True

    def __init__(self, files: ImageFiles, views: Views, seed: int, count: int, sub_views: Views | None = None) -> None:
        super().__init__(files)
        self.kinds, self.count = kinds_of_views(views, sub_views, seed), count

    def cut(self, encoded: Encoded, epoch: int, index: int) -> Crops:
        shape = self.count, DRAWN + 1
        uniform = [
            torch.rand(shape, generator=seeded(seed, epoch, index), dtype=torch.float64) for _, seed in self.kinds
        ]
        height, width = measure(encoded)
        boxes = [
            (kind.size, crop_box(kind.crop_scale, row, height, width))
            for (kind, _), rows in zip(self.kinds, uniform, strict=True)
            for row in rows.tolist()
        ]
        pixels = decode(encoded, by=min(reduction([box], size, height * width) for size, box in boxes))
        ratios = pixels.shape[0] / height, pixels.shape[1] / width
        crops = [resized(pixels, scaled(box, *ratios), (size, size)) for size, box in boxes]
        return Crops(crops, torch.cat(uniform).numpy(), np.array([box for _, box in boxes]))


def square(encoded: Encoded, size: int) -> Tensor:
    """The centre square of an image at a size, 3 x size x size uint8: what `decode` gives, in less time.

    It is resized by torch, which takes a fifth of Pillow's time and rounds otherwise: values differ by 1 of 255, rarely
    by 2.
    """
    if isinstance(encoded, np.ndarray):
        return torch.from_numpy(decode(encoded, size).transpose(2, 0, 1).copy())
    height, width = measure(encoded)
    edge = min(height, width)
    pixels = decode(encoded, by=reduction([(0, 0, edge, edge)], 2 * size, height * width))
    edge = min(pixels.shape[:2])
    top, left = ((side - edge) // 2 for side in pixels.shape[:2])
    return resized(pixels, (top, left, edge, edge), (size, size))


def reduction(boxes: Sequence[Box], size: int, pixels: int) -> int:
    """By how much an image can be reduced so that every box still has the pixels of a view.

    An image that is too large to be decoded is reduced in any case.

    Args:
        boxes: What is cut from it.
        size: Side of the views.
        pixels: Of the whole image.

    >>> reduction([(0, 0, 1000, 900), (9, 9, 500, 600)], 224, 1200 * 1600)
    2
    """
    shortest = min(min(box[2:]) for box in boxes)
    return max(by for by in (1, 2, 4, 8) if by == 1 or shortest >= by * size or 4 * pixels > MOST_PIXELS * by * by)


def scaled(box: Box, down: float, across: float) -> Box:
    """A box on an image that was resized."""
    top, left, height, width = box
    first, last = (round(edge * down) for edge in (top, top + height))
    begin, end = (round(edge * across) for edge in (left, left + width))
    return first, begin, max(1, last - first), max(1, end - begin)


def resized(pixels: np.ndarray, box: Box, shape: tuple[int, int]) -> Tensor:
    """A box of an image (H x W x 3, uint8), resized to a height and width as torchvision does: 3 x H x W, uint8.

    In memory the channels of a pixel stay side by side (channels last), which saves torch a slow pass over the result.
    """
    top, left, height, width = box
    part = torch.from_numpy(pixels[top : top + height, left : left + width].copy())
    return F.interpolate(part[None].permute(0, 3, 1, 2), shape, mode="bilinear", antialias=True)[0]


def stacked(images: Sequence[Tensor]) -> Tensor:
    """What `torch.stack` gives, contiguous; NumPy takes half its time where channels come last."""
    batch = np.empty((len(images), *images[0].shape), np.uint8)
    np.stack([image.numpy() for image in images], out=batch)
    return torch.from_numpy(batch)


def unreadable(name: str, damaged: Sequence[str]) -> UserError:
    return UserError(f"{name}: none of {len(damaged)} images can be read; the first is {damaged[0]}")
