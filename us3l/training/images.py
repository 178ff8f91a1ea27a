"""Where a run's batches come from: images in memory, or files that are read while it trains."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from us3l.data.sources import ImageFiles, ImageSet, decode_all
from us3l.data.stream import Batch, views_loader
from us3l.data.views import two_views
from us3l.training.recipes import Recipe


class Resident:
    """Images that lie on the device, of which views are made by the batch."""

    def __init__(self, image_set: ImageSet, recipe: Recipe, device: torch.device) -> None:
        self.name, self.labels, self.recipe, self.device = image_set.name, image_set.labels, recipe, device
        self.image_set = replace(image_set, images=image_set.images.to(device))
        self.damaged = list(image_set.skipped)

    def __len__(self) -> int:
        return len(self.image_set)

    def order(self, generator: torch.Generator) -> Tensor:
        """The indices of all images, in the order of an epoch."""
        return torch.randperm(len(self), generator=generator)

    def fingerprint(self) -> list[int]:
        """The number of images and the sum of their pixels."""
        return [len(self), int(self.image_set.images.sum(dtype=torch.int64))]

    def sample(self, count: int, generator: torch.Generator) -> ImageSet:
        """Some images, drawn by the generator, to look at."""
        return self.image_set.subset(torch.randperm(len(self), generator=generator)[:count])

    def batch(self, batches: Sequence[Tensor], number: int, epoch: int, generator: torch.Generator) -> Batch:  # noqa: ARG002
        """Views of one of an epoch's batches of indices; how they look is drawn from the generator."""
        indices = batches[number]
        labels = None if self.labels is None else self.labels[indices]
        images = self.image_set.images[indices.to(self.device)]
        return Batch(random_views(images, self.recipe, generator), indices, labels)


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
        """The same."""
        return torch.randperm(len(self), generator=generator)

    def fingerprint(self) -> list[int]:
        """The number of images and a checksum of their names."""
        checksum = 0
        for index in self.files.chosen:
            checksum = zlib.crc32(self.files.source.name(index).encode(), checksum)
        return [len(self), checksum]

    def sample(self, count: int, generator: torch.Generator) -> ImageSet:
        """The same; damaged ones are left out."""
        chosen = torch.randperm(len(self), generator=generator)[:count].sort().values
        found = decode_all(self.files.subset(chosen), self.recipe.views.size)
        found = found.subset(torch.randperm(len(found), generator=generator))  # files are sorted by class
        return replace(found, images=found.images.to(self.device))

    def batch(self, batches: Sequence[Tensor], number: int, epoch: int, generator: torch.Generator) -> Batch:  # noqa: ARG002
        """The same; how an image looks depends on the seed, the epoch and the image. Batches are read in order."""
        recipe = self.recipe
        if self.next != (epoch, number):
            count = recipe.objective.views
            self.reading = views_loader(self.files, recipe.views, batches[number:], recipe.seed, epoch, count)
        self.next = (epoch, number + 1)
        batch = next(self.reading)
        self.damaged += [name for name in batch.damaged if name not in self.damaged]
        views = (view.to(self.device, non_blocking=True) for view in batch.views)
        return Batch(tuple(map(channels_last, views)), batch.indices, batch.labels)


def random_views(images: Tensor, recipe: Recipe, generator: torch.Generator) -> tuple[Tensor, ...]:
    """As many views of images (uint8) as the objective asks for."""
    return tuple(map(channels_last, two_views(images, recipe.views, generator)[: recipe.objective.views]))


def channels_last(view: Tensor) -> Tensor:
    return view.contiguous(memory_format=torch.channels_last)
