"""Embeddings that can be compared across widths: the full network's features, and a linear map to them per width.

The map is ridge regression from a width's features to the full network's, on images without labels. Both are centred
first, so that the full network's own map only takes away its mean. docs/embedding.md has what else was tried.
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


def fit_space(
    net: Slimmable, images: Images, widths: Sequence[Width], progress: Advance | None = None
) -> dict[Width, Probe]:
    """A map for each width into the space that all widths share.

    Args:
        net: The network; widths that are not calibrated are, on these images.
        images: Without labels, or with labels that are not looked at. The same few thousand are always chosen.
        widths: Those that need a map.
        progress: Called with each number of images embedded, of `images_to_fit(...)` in all.
    """
    preprocessing = Preprocessing.of(net)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    chosen = images.subset(order[:IMAGES].sort().values)
    calibrate_missing(net, images, [1.0, *widths], preprocessing)
    found = embed_all([net.at(width) for width in (1.0, *widths)], chosen, preprocessing, progress=progress)
    full, *others = found.values
    return {width: fit_map(features, full) for width, features in zip(widths, others, strict=True)}


def images_to_fit(images: Images, widths: Sequence[Width]) -> int:
    """What `fit_space` reports as progress in all."""
    return min(IMAGES, len(images)) * (1 + len(widths))


def fit_map(features: Tensor, full: Tensor) -> Probe:
    """The linear map from a width's features to those of the full network, centred.

    Args:
        features: N x D, of the width.
        full: N x C, of the full network for the same images.

    >>> full = torch.tensor([[1.0, 0.0], [0.0, 1.0], [3.0, 5.0]])
    >>> fit_map(full, full).scores(full).mean(0).abs().max().item() < 1e-6
    True
    """
    x, y = features.double(), full.double()
    mean = x.mean(0)
    if features.shape == full.shape and torch.equal(features, full):
        weight = torch.eye(len(mean), dtype=x.dtype, device=x.device)
    else:
        x, y = x - mean, y - y.mean(0)
        squares = x.T @ x
        penalty = RIDGE * squares.diagonal().mean().clamp_min(1e-12)
        squares.diagonal().add_(penalty)
        weight = torch.linalg.solve(squares, x.T @ y).T
    return Probe(weight.float(), (-(weight @ mean)).float())


def through(maps: Mapping[Width, Probe], features: Mapping[Width, Tensor]) -> dict[Width, Tensor]:
    """Features of each width in the space that all share."""
    return {width: maps[width].scores(values.float()) for width, values in features.items()}
