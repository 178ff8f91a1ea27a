"""Embeddings that can be compared across widths: one space for all, and a linear map into it for each width.

The space is that of the narrowest width's features, half whitened, and beside them what the full network has besides.
The latter counts for less: where it counts in full, queries of the narrowest width find some images of a gallery of the
full width far too often, and others never. docs/embedding.md has what this is worth, and what else was tried.

Half whitening divides each principal direction of the features by the square root of its standard deviation, so that a
few directions do not decide all cosines. The maps are fitted on images without labels.
"""

from __future__ import annotations

from collections.abc import Sequence

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
REST = 0.5
"""How long what only the full network knows is, on average, relative to what the narrowest width knows too."""


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

    Returns:
        Maps by canonical width. Those of the widest and of the narrowest width are among them if the space is new:
        they make it.
    """
    preprocessing = Preprocessing.of(net)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    chosen = images.subset(order[:IMAGES].sort().values)
    needed = widths_to_embed(net, widths, full_map)
    calibrate_missing(net, images, needed, preprocessing)
    found = embed_all([net.at(width) for width in needed], chosen, preprocessing, progress=progress)
    features = {width: values.float() for width, values in zip(needed, found.values, strict=True)}
    widest, narrowest = net.canonical(1.0), net.canonical(net.min_width)
    if full_map is not None:
        maps = {widest: full_map}
    elif widest == narrowest:
        maps = {widest: half_whitened(features[widest])}
    else:
        maps = dict(zip((widest, narrowest), common_space(features[widest], features[narrowest]), strict=True))
    target = maps[widest].scores(features[widest])
    return maps | {width: fit_map(features[width], target) for width in needed if width not in maps}


def widths_to_embed(net: Slimmable, widths: Sequence[Width], full_map: Probe | None) -> list[Width]:
    """The canonical widths whose features `fit_space` needs, the full network first."""
    basis = (1.0, net.min_width) if full_map is None else (1.0,)
    return list(dict.fromkeys(net.canonical(width) for width in (*basis, *widths)))


def images_to_fit(net: Slimmable, images: Images, widths: Sequence[Width], full_map: Probe | None = None) -> int:
    """What `fit_space` reports as progress in all."""
    return min(IMAGES, len(images)) * len(widths_to_embed(net, widths, full_map))


def common_space(full: Tensor, narrow: Tensor) -> tuple[Probe, Probe]:
    """The maps of the full network and of the narrowest width, into a new space of as many numbers as `full` has.

    The narrowest width's own features, half whitened, come first. The full network predicts them. What is left of its
    features after that, half whitened, comes last; there the narrowest width has zeros.

    Args:
        full: N x C, features of the full network.
        narrow: N x D, those of the narrowest width, of the same images.
    """
    own = half_whitened(narrow)
    first = fit_map(full, own.scores(narrow))
    back = fit_map(first.scores(full), full)
    left = Probe(
        torch.eye(full.shape[1]).to(full) - back.weight @ first.weight, -(back.weight @ first.bias + back.bias)
    )
    rest = followed_by(left, half_whitened(left.scores(full), max(0, full.shape[1] - narrow.shape[1])))
    lengths = [part.scores(full).norm(dim=1).mean() for part in (first, rest)]
    scale = REST * lengths[0] / lengths[1].clamp_min(1e-12)
    zeros = rest.weight.new_zeros(len(rest.bias), narrow.shape[1])
    return (
        Probe(torch.cat([first.weight, scale * rest.weight]), torch.cat([first.bias, scale * rest.bias])),
        Probe(torch.cat([own.weight, zeros]), torch.cat([own.bias, torch.zeros_like(rest.bias)])),
    )


def followed_by(first: Probe, second: Probe) -> Probe:
    """Both maps as one."""
    return Probe(second.weight @ first.weight, second.weight @ first.bias + second.bias)


def half_whitened(features: Tensor, directions: int | None = None) -> Probe:
    """The map of features (N x C) to themselves, centred and half whitened.

    Args:
        features: N x C.
        directions: How many principal directions to keep, as coordinates, the strongest last (default: all of them,
            in the coordinates that the features have).

    >>> features = torch.tensor([[4.0, 0.0], [-4.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    >>> spread = half_whitened(features).scores(features).std(0)
    >>> round((spread[0] / spread[1]).item(), 1)  # it was 4
    2.0
    """
    x = features.double()
    mean = x.mean(0)
    variances, axes = torch.linalg.eigh((x - mean).T @ (x - mean) / len(x))
    if directions is not None:
        first = len(variances) - directions
        variances, axes = variances[first:], axes[:, first:]
    smallest = RIDGE * variances.mean().clamp_min(1e-12)
    weight = (axes * (variances.clamp_min(0) + smallest) ** (-WHITENING / 2)).T
    if directions is None:
        weight = axes @ weight
    return Probe(weight.float(), (-(weight @ mean)).float())


def fit_map(features: Tensor, target: Tensor) -> Probe:
    """The linear map from a width's features to a target, by ridge regression.

    Args:
        features: N x D, of the width.
        target: N x C, of the same images: where they are to be.

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
