"""Images read as they are needed, by worker processes: for sets that do not fit into memory as one tensor.

What an image looks like depends on (seed, epoch, the image) alone, never on the workers. A run that goes on in the
middle of an epoch asks for the steps that are left, and gets the same views as if it had never stopped:

>>> from us3l.data.sources import find
>>> def rest_of_epoch(data, epoch, first):
...     files = find(data, "pretrain")
...     order = files.order(torch.Generator().manual_seed(epoch))
...     steps = [Step(number, epoch, indices) for number, indices in enumerate(order.split(256))]
...     for batch in files.views(Views(size=224), steps[first:], seed=0):
...         view1, view2 = batch.views
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

from us3l.data.augment import DRAWN, apply_to_crops, drawn, normalise
from us3l.data.catalogue import Blocks, Catalogue
from us3l.data.contents import UNKNOWN, Contents, content_hash, differing
from us3l.data.crops import Item, RandomCrops, Read, Reader, Squares, unreadable
from us3l.data.decode import WHITES, Damaged, brightest, content, measure
from us3l.data.images import Batch, Channels, ImageSet, Step, crc, share
from us3l.data.in_memory import Counter, decode_all, in_threads
from us3l.data.loader import default_workers, read_ahead
from us3l.data.preprocessing import Preprocessing
from us3l.data.view_settings import MEAN, STD, Views

WITNESSES = 16  # images whose bytes are part of a fingerprint
MOST_SIZES = 2**16  # images whose size is
PLACES, LOOKED_AT = 8, 32  # where some images are measured, and how many at each
DEEP_LOOKED_AT = 4  # the same of images whose range of values is measured
WINDOW_IMAGES = 2**14
WINDOW_BYTES = 2**27  # half of what a reader keeps, which is a little larger than its file says


@dataclass(frozen=True)
class ImageFiles:
    """Images of any sizes that are still to be decoded, and what is known about them."""

    name: str
    source: Catalogue
    chosen: np.ndarray
    """Rising indices into the source."""
    skipped: Sequence[str] = ()
    """None is known to be damaged before it is read."""

    def __len__(self) -> int:
        return len(self.chosen)

    @property
    def total(self) -> int:
        return len(self)

    @property
    def labels(self) -> Tensor | None:
        labels = self.source.labels[self.chosen]
        return torch.from_numpy(labels) if (labels >= 0).all() else None

    @property
    def classes(self) -> list[str] | None:
        return None if self.labels is None else self.source.classes

    def nbytes(self, size: int) -> int:
        """The memory that all images need when decoded at a size."""
        return len(self) * 3 * size * size

    def shapes(self) -> list[tuple[int, int]]:
        """Heights and widths, upright, of a few hundred images that are always the same ones; not of damaged ones.

        They lie together in a few places, so that little has to be read.
        """
        shapes = []
        for encoded in self.source.read(self.chosen[scattered(len(self), LOOKED_AT)]):
            with suppress(Damaged):
                shapes.append(measure(encoded))
        return shapes

    def subset(self, indices: Tensor) -> Self:
        """The images at these rising indices."""
        return replace(self, chosen=self.chosen[indices.numpy()])

    def to(self, _: torch.device) -> ImageFiles:
        return self

    def order(self, generator: torch.Generator) -> Tensor:
        """All of 0 to N - 1 in a random order; where the source lies in blocks, one that is fast to read."""
        blocks = self.source.blocks
        return (
            torch.randperm(len(self), generator=generator)
            if blocks is None
            else block_order(blocks, self.chosen, generator)
        )

    def sample(self, count: int, generator: torch.Generator, side: int | None = None) -> ImageSet:
        chosen = torch.randperm(len(self), generator=generator)[:count].sort().values
        images = decode_all(self.subset(chosen), side)
        return images.subset(torch.randperm(len(images), generator=generator))  # files are sorted by class

    def batches(
        self, preprocessing: Preprocessing, batch_size: int = 250, workers: int | None = None
    ) -> Iterator[Batch]:
        """See `us3l.data.images.Images`; `workers` as for `views`."""
        whole = ((0, indices.tolist()) for indices in torch.arange(len(self)).split(batch_size))

        def seen(read: Read) -> tuple[Tensor, ...]:
            return tuple(map(preprocessing.apply, read.pixels))

        return _without_empty(_batches(self, Squares(self, preprocessing.resize), whole, seen, workers), self.name)

    def views(
        self,
        views: Views,
        steps: Iterable[Step],
        seed: int,
        count: int = 2,
        part: tuple[int, int] = (0, 1),
        device: torch.device | None = None,
        mean: Channels = MEAN,
        std: Channels = STD,
        sub_views: Views | None = None,
        workers: int | None = None,
    ) -> Iterator[Batch]:
        """See `us3l.data.images.Images`; draws are made for each image by itself.

        `workers` is the number of decoding processes (default: see `default_workers`; 0: in this process). They live
        until the steps end, and ask for these only as they are needed.
        """
        kinds = [each for kind in (views, sub_views) if kind for each in (kind, *[kind.second] * (count - 1))]

        def made(read: Read) -> tuple[Tensor, ...]:
            uniform, boxes = torch.from_numpy(read.uniform), torch.from_numpy(read.boxes)
            found = []
            for view, (kind, pixels) in enumerate(zip(kinds, read.pixels, strict=True)):
                draws = drawn(kind, uniform[:, view, :DRAWN], uniform[:, view, DRAWN], boxes[:, view])
                found.append(normalise(apply_to_crops(pixels.to(device, non_blocking=True), draws), mean, std))
            return tuple(found)

        shares = ((step.epoch, share(step.indices, part).tolist()) for step in steps)
        pinned = device is not None and device.type == "cuda"
        chosen = self.readers_for(device) if workers is None else workers
        return _batches(self, RandomCrops(self, views, seed, count, sub_views), shares, made, chosen, pinned)

    def readers_for(self, _: torch.device | None) -> int:
        """How many processes make the views for a device, unless it is said."""
        return default_workers()

    @property
    def contents(self) -> Contents:
        """See `us3l.data.images.Images`."""
        return self.source.contents[self.chosen]

    def note(self, contents: np.ndarray) -> list[str]:
        """Take note of the hashes of images that were read: see `Read.contents`; name those that are not what they
        were."""
        changed = self.source.contents.note(*contents.T)
        return [f"{self.source.name(index)}: other bytes than before" for index in changed]

    def read_contents(self, progress: Counter | None = None) -> Contents:
        """See `us3l.data.images.Images`."""
        places = np.flatnonzero(self.source.contents.hashes[self.chosen] == UNKNOWN)
        self._read_contents(self.chosen[places], progress)
        return self.contents

    def _read_contents(self, indices: np.ndarray, progress: Counter | None = None) -> None:
        source = self.source
        statuses = source.statuses(indices) if source.statuses else np.zeros(len(indices), np.int64)
        hashes = np.zeros(len(indices), np.int64)
        for place, value in enumerate(in_threads(content_hash, source.read(indices))):
            hashes[place] = value
            if progress:
                progress(place + 1, len(indices))
        source.contents.note(indices, hashes, statuses)

    def changed_since(self, before: Contents, progress: Counter | None = None) -> list[str]:
        """See `us3l.data.images.Images`."""
        differing(before, self.contents)  # that there are as many
        source, chosen = self.source, self.chosen
        unread = (before.hashes != UNKNOWN) & (source.contents.hashes[chosen] == UNKNOWN)
        if source.statuses is None:
            return self._changed(before)  # what a program gives is compared when it is read
        same = unread & (source.statuses(chosen) == before.statuses) & (before.statuses != UNKNOWN)
        source.contents.note(chosen[same], before.hashes[same], before.statuses[same])
        self._read_contents(chosen[unread & ~same], progress)
        gone = chosen[unread & (source.contents.hashes[chosen] == UNKNOWN)]
        return self._changed(before) + [f"{source.name(index)}: cannot be read any more" for index in gone]

    def _changed(self, before: Contents) -> list[str]:
        places = differing(before, self.contents)
        return [f"{self.source.name(self.chosen[place])}: other bytes than before" for place in places]

    def fingerprint(self) -> list[int]:
        """The number of images, and checksums of names, of encoded sizes, of some images' bytes, and of labels."""
        names = contents = 0
        for index in self.chosen:
            names = zlib.crc32(self.source.name(index).encode(errors="surrogateescape"), names)
        places = np.linspace(0, len(self) - 1, min(WITNESSES, len(self))).astype(int)
        for encoded in self.source.read(self.chosen[places]):
            contents = zlib.crc32(content(encoded), contents)
        some = self.chosen[np.linspace(0, len(self) - 1, min(MOST_SIZES, len(self))).astype(int)]
        sizes = crc(self.source.sizes(some) if self.source.sizes else None)
        return [len(self), names, sizes, contents, crc(self.source.labels[self.chosen])]


def scattered(count: int, together: int) -> np.ndarray:
    """Rising places of a fixed sample of `count` images: some `together` at each of a few places."""
    starts = np.linspace(0, max(0, count - together), PLACES).astype(int)
    return np.unique(np.concatenate([np.arange(start, min(start + together, count)) for start in starts]))


def measure_white(source: Catalogue) -> tuple[int, int] | None:
    """The largest value of a sample of images of integers in more than 8 bits, and the value of white that it tells.

    None for all other images: if the first of a source is none of integers, no other is looked at.
    """
    values = []
    for places in (np.array([0]), scattered(len(source), DEEP_LOOKED_AT)):
        for encoded in source.read(places):
            with suppress(Damaged):
                values.append(brightest(encoded) or 0)
        if not any(values):
            return None
    return next(((max(values), white) for white in WHITES if max(values) <= white), None)


def _batches(
    files: ImageFiles,
    reader: Reader,
    items: Iterable[Item],
    to_views: Callable[[Read], tuple[Tensor, ...]],
    workers: int | None,
    pinned: bool = False,
) -> Iterator[Batch]:
    """A batch for each item, even if none of its images can be read."""
    labels = files.labels
    for read, waited in read_ahead(reader, items, default_workers() if workers is None else workers, pinned):
        kept = torch.tensor(read.indices, dtype=torch.int64)
        own_labels = None if labels is None else labels[kept]
        yield Batch(to_views(read), kept, own_labels, read.damaged, files.note(read.contents), waited)


def _without_empty(batches: Iterator[Batch], name: str) -> Iterator[Batch]:
    """The batches in which there is an image; one of them tells of those in which there is none."""
    held: Batch | None = None
    damaged: list[str] = []
    changed: list[str] = []
    for batch in batches:
        damaged += batch.damaged
        changed += batch.changed
        if len(batch):
            if held:
                yield held
            held, damaged, changed = replace(batch, damaged=damaged, changed=changed), [], []
    if held is None:
        raise unreadable(name, damaged)
    yield replace(held, damaged=[*held.damaged, *damaged], changed=[*held.changed, *changed])


def block_order(blocks: Blocks, chosen: np.ndarray, generator: torch.Generator) -> Tensor:
    """Places in `chosen` (rising indices): blocks in random order, their images mixed within windows of a few blocks.

    A window has at least `WINDOW_IMAGES` images, but no more than `WINDOW_BYTES` to hold at a time, if it can.
    """
    block_of = np.searchsorted(blocks.starts, chosen, side="right") - 1
    present, first, counts = np.unique(block_of, return_index=True, return_counts=True)
    shuffled = torch.randperm(len(present), generator=generator).numpy()
    parts = []
    for window in _windows(shuffled, counts, blocks.nbytes[present]):
        places = torch.cat([torch.arange(first[block], first[block] + counts[block]) for block in window])
        parts.append(places[torch.randperm(len(places), generator=generator)])
    return torch.cat(parts)


def _windows(order: np.ndarray, counts: np.ndarray, nbytes: np.ndarray) -> Iterator[list[int]]:
    window: list[int] = []
    images = held = 0
    for block in order.tolist():
        if window and (images >= WINDOW_IMAGES or held + nbytes[block] > WINDOW_BYTES):
            yield window
            window, images, held = [], 0, 0
        window.append(block)
        images += counts[block]
        held += nbytes[block]
    if window:
        yield window
