"""The order of an epoch: random, and for sources that are slow to read in any order near to the one they lie in."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from us3l.data.catalogue import Blocks

WINDOW_IMAGES = 2**14
WINDOW_BYTES = 2**27  # half of what a reader keeps, which is a little larger than its file says


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
