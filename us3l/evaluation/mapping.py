"""Embeddings that can be compared across widths: the full network's features, half whitened; a linear map per width.

Half whitening divides each principal direction of the features by the square root of its standard deviation, so that a
few directions do not decide all cosines. The map of a narrower width is ridge regression from its own features, on
images without labels. docs/embedding.md has what else was tried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from us3l.data.images import Images
from us3l.data.preprocessing import Preprocessing
from us3l.evaluation.features import embed_all
from us3l.evaluation.linear import Probe
from us3l.evaluation.tasks import calibrate_missing
from us3l.progress import Advance
from us3l.slimmable import Slimmable
from us3l.width import Width

IMAGES = 4096
"""Images that maps are fitted on."""
RIDGE = 1e-2
"""The penalty, as a share of the features' mean variance."""
WHITENING = 0.5
"""Which power of its standard deviation each direction is divided by: 0 leaves the features as they are."""


def fit_space(
    net: Slimmable,
    images: Images,
    widths: Sequence[Width],
    progress: Advance | None = None,
    full_map: Probe | None = None,
) -> dict[Width, Probe]:
    """A map for each width into the space that all widths share.

    Args:
        net: The network; widths that are not calibrated are, on these images.
        images: Without labels, or with labels that are not looked at. The same few thousand are always chosen.
        widths: Those that need a map.
        progress: Called with each number of images embedded, of `images_to_fit(...)` in all.
        full_map: The full network's, if the space is there already (default: a new space, by these images).
    """
    preprocessing = Preprocessing.of(net)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    chosen = images.subset(order[:IMAGES].sort().values)
    calibrate_missing(net, images, [1.0, *widths], preprocessing)
    found = embed_all([net.at(width) for width in (1.0, *widths)], chosen, preprocessing, progress=progress)
    full, *others = found.values
    space = half_whitened(full) if full_map is None else full_map
    target = space.scores(full.float())
    full_width = net.canonical(1.0)
    return {
        width: space if net.canonical(width) == full_width else fit_map(features, target)
        for width, features in zip(widths, others, strict=True)
    }


def images_to_fit(images: Images, widths: Sequence[Width]) -> int:
    """What `fit_space` reports as progress in all."""
    return min(IMAGES, len(images)) * (1 + len(widths))


def half_whitened(full: Tensor) -> Probe:
    """The full network's own map: its features (N x C), centred and half whitened, in the same coordinates.

    >>> full = torch.tensor([[4.0, 0.0], [-4.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    >>> spread = half_whitened(full).scores(full).std(0)
    >>> round((spread[0] / spread[1]).item(), 1)  # it was 4
    2.0
    """
    x = full.double()
    mean = x.mean(0)
    variances, directions = torch.linalg.eigh((x - mean).T @ (x - mean) / len(x))
    smallest = RIDGE * variances.mean().clamp_min(1e-12)
    weight = directions * (variances.clamp_min(0) + smallest) ** (-WHITENING / 2) @ directions.T
    return Probe(weight.float(), (-(weight @ mean)).float())


def fit_map(features: Tensor, target: Tensor) -> Probe:
    """The linear map from a width's features to a target, by ridge regression.

    Args:
        features: N x D, of the width.
        target: N x C, of the same images: where the full network's map puts them.

    >>> target = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]])
    >>> (fit_map(5 * target + 3, target).scores(5 * target + 3) - target).abs().max().item() < 0.02
    True
    """
    x, y = features.double(), target.double()
    mean, middle = x.mean(0), y.mean(0)
    x, y = x - mean, y - middle
    squares = x.T @ x
    squares.diagonal().add_(RIDGE * squares.diagonal().mean().clamp_min(1e-12))
    weight = torch.linalg.solve(squares, x.T @ y).T
    return Probe(weight.float(), (middle - weight @ mean).float())


def through(maps: Mapping[Width, Probe], features: Mapping[Width, Tensor]) -> dict[Width, Tensor]:
    """Features of each width in the space that all share."""
    return {width: maps[width].scores(values.float()) for width, values in features.items()}
