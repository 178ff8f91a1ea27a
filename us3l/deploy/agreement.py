"""How much a narrow network agrees with the full one, without labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from us3l.errors import UserError
from us3l.slimmable import Slimmable

NEIGHBOURS = 10
FEWEST = 5 * NEIGHBOURS
"""Images: with fewer, most of them would be neighbours."""


def agreement(
    net: Slimmable, widths: Sequence[float], images: Tensor, progress: Callable[[int], None] | None = None
) -> dict[float, float]:
    """Of the images' nearest neighbours by the full network, how many are also nearest by narrower ones.

    What neighbours an image has is what features are used for, in search as in kNN. Chance is about
    100 * NEIGHBOURS / images percent.

    Args:
        net: a calibrated network.
        widths: those to compare.
        images: preprocessed, N x 3 x S x S.
        progress: called for each width that was compared.

    Returns:
        The percentage of shared neighbours by width; 100 for the full network.
    """
    if len(images) < FEWEST:
        raise UserError(f"agreement needs at least {FEWEST} images, not {len(images)}")
    reference = neighbours(net, 1.0, images)
    found = {}
    for width in widths:
        shared = (neighbours(net, width, images)[:, :, None] == reference[:, None, :]).any(2)
        found[width] = 100 * shared.float().mean().item()
        if progress:
            progress(1)
    return found


@torch.no_grad()
def neighbours(net: Slimmable, width: float, images: Tensor) -> Tensor:
    """The nearest other images of each image by the cosine of their features: N x NEIGHBOURS."""
    network = net.at(width)
    features = F.normalize(torch.cat([network(part) for part in images.split(50)]))
    similarity = features @ features.T
    return similarity.fill_diagonal_(-torch.inf).topk(NEIGHBOURS).indices
