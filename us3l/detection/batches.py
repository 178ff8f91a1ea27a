"""Examples in batches, decoded by other processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np
import torch
from torch.utils.data import DataLoader

from us3l.data.loader import iterate
from us3l.detection.examples import Example, Examples

Key = tuple[int, bool]
"""The place of an image, and whether to mirror it."""


def loader(examples: Examples, batches: Iterable[list[Key]], workers: int) -> Iterator[list[Example | str]]:
    loader = DataLoader(
        examples,
        batch_sampler=batches,
        collate_fn=list,
        num_workers=workers,
        generator=torch.Generator(),  # nothing is drawn from the global one
    )
    yield from iterate(loader)


def training_batches(count: int, batch: int, start: int, steps: int, seed: int) -> Iterator[list[Key]]:
    """Those of the steps from `start` on: all images in a new order each epoch, half of them mirrored.

    A batch may reach from one epoch into the next, so that sets smaller than a batch are no exception.
    """

    def keys() -> Iterator[Key]:
        epoch, first = divmod(start * batch, count)
        while True:
            generator = np.random.default_rng((seed, epoch))
            order, mirror = generator.permutation(count), generator.random(count) < 0.5
            yield from zip(order[first:].tolist(), mirror[first:].tolist(), strict=True)
            epoch, first = epoch + 1, 0

    endless = keys()
    return (list(islice(endless, batch)) for _ in range(start, steps))
