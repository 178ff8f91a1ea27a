"""How much a narrow network agrees with the full one, without labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from us3l.evaluation.unlabelled import shared_neighbours
from us3l.slimmable import Slimmable
from us3l.width import FULL, Width


@torch.no_grad()
def agreement(
    net: Slimmable, widths: Sequence[Width], images: Tensor, progress: Callable[[int], None] | None = None
) -> dict[Width, float]:
    """The share of nearest neighbours that widths have in common with the full network: see `shared_neighbours`.

    Args:
        net: a calibrated network.
        widths: those to compare.
        images: preprocessed, N x 3 x S x S.
        progress: called for each width that was compared.

    Returns:
        The percentage of shared neighbours by width; 100 for the full network.
    """

    def features(width: Width) -> Tensor:
        return torch.cat([net.at(width)(part) for part in images.split(50)])

    full = features(FULL)
    found = {}
    for width in widths:
        found[width] = shared_neighbours(features(width), full)
        if progress:
            progress(1)
    return found
