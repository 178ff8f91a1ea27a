"""Where a run's batches come from: images in memory, or files that are read while it trains."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from us3l.data.preprocessing import Preprocessing
from us3l.data.sources import ImageFiles, ImageSet, decode_all
from us3l.data.stream import Batch, views_loader
from us3l.data.views import two_views
from us3l.errors import UserError
from us3l.files import read_bytes, replacing
from us3l.training.recipes import Recipe


class Resident:
    """Images that lie on the device, of which views are made by the batch.

    A damaged image keeps its place in the order of an epoch, and its batch is smaller by it: whether an image can be
    read never changes which views the others get.
    """

    def __init__(self, image_set: ImageSet, recipe: Recipe, device: torch.device) -> None:
        self.name, self.labels, self.recipe, self.device = image_set.name, image_set.labels, recipe, device
        self.image_set = replace(image_set, images=image_set.images.to(device))
        self.damaged = list(image_set.skipped)
        self.slots = torch.arange(len(image_set))
        """For each place, which of the images is there; -1 for a damaged one."""
        if image_set.places is not None:
            self.slots = torch.full((len(image_set) + len(image_set.skipped),), -1)
            self.slots[image_set.places] = torch.arange(len(image_set))

    def __len__(self) -> int:
        return len(self.slots)

    def order(self, generator: torch.Generator) -> Tensor:
        """The indices of all images, in the order of an epoch."""
        return torch.randperm(len(self), generator=generator)

    def fingerprint(self) -> list[int]:
        """The number of images and the sum of their pixels."""
        return [len(self), int(self.image_set.images.sum(dtype=torch.int64))]

    def sample(self, count: int, generator: torch.Generator) -> ImageSet:
        """Some images, drawn by the generator, to look at."""
        slots = self.slots[torch.randperm(len(self), generator=generator)]
        return self.image_set.subset(slots[slots >= 0][:count])

    def batch(
        self,
        batches: Sequence[Tensor],
        number: int,
        epoch: int,  # noqa: ARG002
        generator: torch.Generator,
        part: tuple[int, int] = (0, 1),
    ) -> Batch:
        """Views of one of an epoch's batches of indices; how they look is drawn from the generator.

        When the batches are parts of larger ones, (0, 2) their first halves, images look as they do in the whole.
        """
        indices = batches[number]
        slots = self.slots[indices]
        views = random_views(self.image_set.images[slots.clamp(min=0).to(self.device)], self.recipe, generator, part)
        if (slots < 0).any():  # drawn for, and left out only now
            views = tuple(channels_last(view[(slots >= 0).to(self.device)]) for view in views)
            indices, slots = indices[slots >= 0], slots[slots >= 0]
        if not len(slots):
            raise UserError(f"{self.name}: a batch of nothing but damaged images, such as {self.damaged[0]}")
        return Batch(views, indices, None if self.labels is None else self.labels[slots])


class Streamed:
    """Images that worker processes read and transform, ahead of the steps."""

    def __init__(self, files: ImageFiles, recipe: Recipe, device: torch.device) -> None:
        self.name, self.labels, self.recipe, self.device, self.files = files.name, files.labels, recipe, device, files
        self.damaged: list[str] = []
        self.reading: Iterator[Batch] = iter(())
        self.next = (-1, -1)

    def __len__(self) -> int:
        return len(self.files)

    def order(self, generator: torch.Generator) -> Tensor:
        """The same; of shards, one in which they can be read."""
        return self.files.order(generator)

    @cached_property
    def checksum(self) -> int:
        """Of the names of all images."""
        checksum = 0
        for index in self.files.chosen:
            checksum = zlib.crc32(self.files.source.name(index).encode(errors="surrogateescape"), checksum)
        return checksum

    def fingerprint(self) -> list[int]:
        """The number of images and a checksum of their names."""
        return [len(self), self.checksum]

    def sample(self, count: int, generator: torch.Generator) -> ImageSet:
        """The same; damaged ones are left out."""
        chosen = torch.randperm(len(self), generator=generator)[:count].sort().values
        found = decode_all(self.files.subset(chosen), Preprocessing.usual(self.recipe.views.size).resize)
        found = found.subset(torch.randperm(len(found), generator=generator))  # files are sorted by class
        return replace(found, images=found.images.to(self.device))

    def batch(
        self,
        batches: Sequence[Tensor],
        number: int,
        epoch: int,
        generator: torch.Generator,  # noqa: ARG002
        part: tuple[int, int] = (0, 1),  # noqa: ARG002
    ) -> Batch:
        """The same; how an image looks depends on the seed, the epoch and the image. Batches are read in order."""
        recipe = self.recipe
        if self.next != (epoch, number):
            count = recipe.objective.views
            self.reading = iter(())  # the workers of an epoch end before others are started
            self.reading = views_loader(self.files, recipe.views, batches[number:], recipe.seed, epoch, count)
        self.next = (epoch, number + 1)
        batch = next(self.reading)
        self.damaged += [name for name in batch.damaged if name not in self.damaged]
        views = (view.to(self.device, non_blocking=True) for view in batch.views)
        return Batch(tuple(map(channels_last, views)), batch.indices, batch.labels)


def note_damaged(path: Path, damaged: Iterable[str]) -> list[str]:
    """Add images to a list of damaged ones, a line each with the reason; returns all that are in it now."""
    known = read_bytes(path).decode(errors="surrogateescape").splitlines() if path.exists() else []
    everything = list(dict.fromkeys([*known, *(" ".join(line.split()) for line in damaged)]))
    if len(everything) > len(known):
        with replacing(path) as temporary:
            temporary.write_bytes("".join(f"{line}\n" for line in everything).encode(errors="surrogateescape"))
    return everything


def check_damaged(name: str, damaged: Sequence[str], limit: int) -> None:
    """A `UserError` when more images than allowed cannot be read."""
    if len(damaged) > limit:
        raise UserError(
            f"{name}: {len(damaged)} images cannot be read, such as {damaged[-1]}; mend or remove them, or allow more "
            f"than {limit} by --max-bad-images"
        )


def random_views(
    images: Tensor, recipe: Recipe, generator: torch.Generator, part: tuple[int, int] = (0, 1)
) -> tuple[Tensor, ...]:
    """As many views of images (uint8) as the objective asks for."""
    return tuple(map(channels_last, two_views(images, recipe.views, generator, part)[: recipe.objective.views]))


def channels_last(view: Tensor) -> Tensor:
    return view.contiguous(memory_format=torch.channels_last)
