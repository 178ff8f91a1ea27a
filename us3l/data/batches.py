"""Batches of a set of images, wherever they are: one tensor in memory, or files that workers decode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from us3l.data.preprocessing import Preprocessing
from us3l.data.sources import ImageFiles, ImageSet
from us3l.data.spec import Views
from us3l.data.stream import Batch, evaluation_loader, views_loader
from us3l.data.views import apply, draw, normalise
from us3l.seeds import seeded

Images = ImageSet | ImageFiles


def evaluation_batches(images: Images, preprocessing: Preprocessing, batch_size: int = 250) -> Iterator[Batch]:
    """Every image once, in order, as a network sees it."""
    if isinstance(images, ImageFiles):
        yield from evaluation_loader(images, preprocessing, batch_size)
        return
    for indices in torch.arange(len(images)).split(batch_size):
        view = preprocessing.apply(images.images[indices])
        yield Batch((view,), indices, None if images.labels is None else images.labels[indices])


def view_batches(
    images: Images, views: Views, batches: Sequence[Tensor], seed: int, epoch: int, count: int = 2
) -> Iterator[Batch]:
    """`count` random views of the images of each batch; all draws come from (seed, epoch, the batch's place)."""
    if isinstance(images, ImageFiles):
        yield from views_loader(images, views, batches, seed, epoch, count)
        return
    height, width = images.images.shape[-2:]
    generator = seeded(seed, epoch, 1)
    for indices in batches:
        part = images.images[indices]
        draws = [draw(views, len(part), height, width, generator) for _ in range(count)]
        made = tuple(normalise(apply(part, choice)) for choice in draws)
        yield Batch(made, indices, None if images.labels is None else images.labels[indices])
