"""A set of images: the one protocol for those in memory and those read when needed, and the set in memory."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from us3l.data.augment import random_views
from us3l.data.contents import Contents, content_hash, differing
from us3l.data.preprocessing import Preprocessing
from us3l.data.view_settings import MEAN, STD, Views
from us3l.system.errors import UserError
from us3l.system.seeds import seed_from, seeded

if TYPE_CHECKING:
    from us3l.data.streamed import ImageFiles

SUB_VIEWS = 2  # beside a seed: draws of views that are made beside the others
STAND_INS = 100  # images that are tried in the place of a damaged one
DEVICE_SHARE = 0.25  # of a device's memory that images may take
Channels = tuple[float, float, float]


@dataclass(frozen=True)
class Batch:
    """Some images of a set, the damaged ones left out."""

    views: tuple[Tensor, ...]
    """Each N x 3 x S x S, float32, normalised."""
    indices: Tensor
    """N, int64: which images of the set they are."""
    labels: Tensor | None = None
    damaged: Sequence[str] = ()
    """The images that were left out, each with the reason."""
    changed: Sequence[str] = ()
    """Images that have other bytes than when they were read before, each with the reason."""
    waited: float = 0.0
    """Seconds that went by until the images had been read."""

    def __len__(self) -> int:
        return len(self.indices)


@dataclass(frozen=True)
class Step:
    """The images that one step of training looks at."""

    number: int
    """Of the step, counted from the first of the run."""
    epoch: int
    indices: Tensor
    """Int64, from the set's `order`: the whole batch, which may be shared out among processes."""


class Images(Protocol):
    """Images in memory (`ImageSet`) or read when they are needed (`us3l.data.streamed.ImageFiles`)."""

    @property
    def name(self) -> str: ...

    @property
    def labels(self) -> Tensor | None:
        """N, int64."""

    @property
    def classes(self) -> list[str] | None:
        """A name for each label; None exactly when there are no labels."""

    @property
    def skipped(self) -> Sequence[str]:
        """Images that are already known to be damaged, each with the reason."""

    @property
    def total(self) -> int:
        """The number of images, the damaged ones counted."""

    def __len__(self) -> int:
        """The number of images, without those in `skipped`."""

    def subset(self, indices: Tensor) -> Images:
        """The images at these rising indices."""

    def to(self, device: torch.device) -> Images:
        """The same images, brought to a device if they are in memory and it has room for them."""

    def order(self, generator: torch.Generator) -> Tensor:
        """All of 0 to `total` - 1 in a random order that is fast to read: that of an epoch."""

    def sample(self, count: int, generator: torch.Generator, side: int | None = None) -> ImageSet:
        """Some images in memory, to look at; with a `side`, as decoded at that size if the files are at hand."""

    def batches(self, preprocessing: Preprocessing, batch_size: int = 250) -> Iterator[Batch]:
        """Every image once, in order, as a network sees it."""

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
    ) -> Iterator[Batch]:
        """Random views of the images of each step. They depend on the seed, the step or epoch, and the image alone.

        A damaged image is replaced by another one, chosen by chance that depends on it alone: batches are whole, and
        the other images look as if it could be read.

        Args:
            views: How views are made.
            steps: What to look at, one batch each; of one epoch or of many.
            seed: All draws come from it.
            count: Views of each image.
            part: Of each step's images only a share: (0, 2) is the first half, as the first of two processes takes it.
            device: Where the views are made.
            mean: What to take from the channels.
            std: What to divide them by.
            sub_views: How as many more views of each image are made, for sub-networks; they come after the others
                (default: none).
        """

    def fingerprint(self) -> list[int]:
        """Numbers that differ when images or labels were exchanged; first those that checkpoints always had."""

    @property
    def contents(self) -> Contents:
        """A hash of each of the `total` images, as far as they have been read."""

    def read_contents(self, progress: Callable[[int, int], None] | None = None) -> Contents:
        """Read the images that have not been read yet; return the hashes of all.

        Args:
            progress: Called with the number of images read so far, and of all that must be.
        """

    def changed_since(self, before: Contents, progress: Callable[[int, int], None] | None = None) -> list[str]:
        """Name the images whose bytes are not what they were, or that are gone, each with the reason.

        Args:
            before: What their `contents` were.
            progress: Called with the number of images read so far, and of all that must be: those whose files were
                written since.
        """


@dataclass
class ImageSet:
    """Images of one size in memory, and what is known about them."""

    name: str
    images: Tensor
    """N x 3 x H x W, uint8."""
    labels: Tensor | None = None
    """N, int64."""
    classes: list[str] | None = None
    """A name for each label; None exactly when there are no labels."""
    skipped: list[str] = field(default_factory=list)
    """Damaged images that were left out, each with the reason."""
    places: Tensor | None = None
    """N, int64: where each image is among all, the damaged ones counted; None if there were none."""
    files: ImageFiles | None = None
    """What they were decoded from."""

    def __post_init__(self) -> None:
        check_pixels(self.images, self.name)
        if self.labels is not None and len(self.labels) != len(self.images):
            raise UserError(f"{self.name}: {len(self.images)} images cannot have {len(self.labels)} labels")

    def __len__(self) -> int:
        return len(self.images)

    @property
    def total(self) -> int:
        return len(self.slots)

    @cached_property
    def slots(self) -> Tensor:
        """For each place among all, which of the images is there; -1 for a damaged one."""
        if self.places is None:
            return torch.arange(len(self))
        slots = torch.full((len(self) + len(self.skipped),), -1)
        slots[self.places] = torch.arange(len(self))
        return slots

    def subset(self, indices: Tensor) -> ImageSet:
        """The images at these indices, in this order."""
        labels = None if self.labels is None else self.labels[indices.to(self.labels.device)]
        chosen = self.images[indices.to(self.images.device)]
        return replace(self, images=chosen, labels=labels, skipped=[], places=None, files=None)

    def to(self, device: torch.device) -> ImageSet:
        if device.type == "cuda" and self.images.nbytes > DEVICE_SHARE * torch.cuda.mem_get_info(device)[1]:
            return self
        return replace(self, images=self.images.to(device))

    def order(self, generator: torch.Generator) -> Tensor:
        return torch.randperm(self.total, generator=generator)

    def sample(self, count: int, generator: torch.Generator, side: int | None = None) -> ImageSet:
        if self.files is not None and side not in (None, self.images.shape[-1]):
            return self.files.sample(count, generator, side)
        slots = self.slots[self.order(generator)]
        return self.subset(slots[slots >= 0][:count])

    def batches(self, preprocessing: Preprocessing, batch_size: int = 250) -> Iterator[Batch]:
        for indices in torch.arange(len(self)).split(batch_size):
            view = preprocessing.apply(self.images[indices])
            yield Batch((view,), indices, None if self.labels is None else self.labels[indices])

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
    ) -> Iterator[Batch]:
        """See `Images`; draws are made for a step's whole batch at once."""
        for step in steps:
            indices = share(step.indices, part)
            if self.places is not None:
                indices = torch.tensor([self._readable(index) for index in indices.tolist()])
            slots = self.slots[indices]
            pixels = self.images[slots.to(self.images.device, non_blocking=True)]
            if device is not None and device != pixels.device:
                pixels = (pixels.pin_memory() if device.type == "cuda" else pixels).to(device, non_blocking=True)
            made = (
                random_views(pixels, kind, seeded(number, step.number, 1), count, part, mean, std)
                for kind, number in kinds_of_views(views, sub_views, seed)
            )
            yield Batch(tuple(chain.from_iterable(made)), indices, None if self.labels is None else self.labels[slots])

    def _readable(self, index: int) -> int:
        assert self.places is not None
        candidates = (index, *stand_ins(index, self.total), int(self.places[0]))
        return next(other for other in candidates if self.slots[other] >= 0)

    def fingerprint(self) -> list[int]:
        """The number of images, the sum of their pixels, and checksums of each one's sum and of the labels."""
        sums = self.images.flatten(1).sum(dim=1, dtype=torch.int64).cpu()
        labels = None if self.labels is None else self.labels.cpu().numpy()
        return [self.total, int(sums.sum()), zlib.crc32(sums.numpy().tobytes()), crc(labels)]

    @property
    def contents(self) -> Contents:
        """See `Images`; of images that were never in files, hashes of their pixels."""
        return self._contents if self.files is None else self.files.contents

    @cached_property
    def _contents(self) -> Contents:
        contents = Contents.unread(self.total)
        places = np.arange(self.total) if self.places is None else self.places.numpy()
        contents.hashes[places] = [content_hash(pixels) for pixels in self.images.cpu().numpy()]
        return contents

    def read_contents(self, progress: Callable[[int, int], None] | None = None) -> Contents:
        """See `Images`; they are in memory."""
        return self.contents if self.files is None else self.files.read_contents(progress)

    def changed_since(self, before: Contents, progress: Callable[[int, int], None] | None = None) -> list[str]:
        """See `Images`."""
        if self.files is not None:
            return self.files.changed_since(before, progress)
        return [f"image {place}: has other pixels" for place in differing(before, self.contents)]


def kinds_of_views(views: Views, sub_views: Views | None, seed: int) -> list[tuple[Views, int]]:
    """Each kind of views that a batch has, and the seed of its draws."""
    return [(views, seed), *([] if sub_views is None else [(sub_views, seed_from(seed, SUB_VIEWS))])]


def share(indices: Tensor, part: tuple[int, int]) -> Tensor:
    """One process's part of a batch."""
    number, parts = part
    return indices.view(parts, -1)[number]


def stand_ins(index: int, total: int) -> Iterator[int]:
    """What to look at instead of a damaged image: a few others, by chance that depends on the image alone."""
    generator = np.random.default_rng([index, total])
    return (int(generator.integers(total)) for _ in range(STAND_INS))


def crc(values: np.ndarray | None) -> int:
    """Return the CRC-32 of whole numbers, 0 of none."""
    return 0 if values is None else zlib.crc32(np.ascontiguousarray(values, np.int64).tobytes())


def check_pixels(images: Tensor, name: str) -> None:
    """A `UserError` for tensors that are not images as bytes."""
    if images.ndim != 4 or images.shape[1] != 3:
        shape = " x ".join(map(str, images.shape))
        raise UserError(f"{name or 'images'}: expected N x 3 x height x width, not {shape or 'a number'}")
    if images.dtype != torch.uint8:
        kind = str(images.dtype).removeprefix("torch.")
        raise UserError(
            f"{name or 'images'}: expected bytes (uint8, 0 to 255), not {kind}; of values from 0 to 1 make them by "
            "(images * 255).round().to(torch.uint8)"
        )
