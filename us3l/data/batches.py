"""Batches of a set of images, wherever they are: one tensor in memory, or files that workers decode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from us3l.data.sources import ImageFiles, ImageSet
from us3l.data.spec import Views
from us3l.data.stream import Batch, evaluation_loader, views_loader
from us3l.data.views import apply, centre, draw, evaluation_view, normalise
from us3l.seeds import seeded

Images = ImageSet | ImageFiles


LARGE = 64


def whole_side(size: int) -> int:
    """The side of the whole image when evaluation looks at its centre `size`: small images are seen whole.

    Small images show their object alone; for photographs the usual way is to resize to 256 and to cut out 224.
    """
    return round(size * 256 / 224) if size >= LARGE else size


def evaluation_batches(images: Images, size: int, side: int | None = None, batch_size: int = 250) -> Iterator[Batch]:
    """Every image once, in order: the centre `size` of the image resized to `side` (default: `whole_side(size)`)."""
    side = side or whole_side(size)
    if isinstance(images, ImageFiles):
        yield from evaluation_loader(images, size, batch_size, side)
        return
    for indices in torch.arange(len(images)).split(batch_size):
        view = centre(evaluation_view(images.images[indices], side), size)
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
