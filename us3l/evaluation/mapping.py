"""Embeddings that can be compared across widths: one space for all, and a linear map into it for each width.

The space has two parts: the narrowest width's features, half whitened, and beside them what the full network knows
besides. The full network runs together with the narrowest one, so that the first part is the same in both; and each
part has the same length for every image. So queries of the narrowest width find in a gallery of the full width what
they find in their own, in the same order. docs/lab/embedding.md has what this is worth, and what else was tried.

Half whitening divides each principal direction of the features by the square root of its standard deviation, so that a
few directions do not decide all cosines. The maps are fitted on images without labels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from us3l.data.images import Images
from us3l.data.preprocessing import Preprocessing
from us3l.evaluation.features import embed_all
from us3l.evaluation.linear import Probe
from us3l.evaluation.prepare import calibrate_missing
from us3l.slimmable import Slimmable
from us3l.system.progress import Advance
from us3l.width import FULL, Width

IMAGES = 4096
"""Images that maps are fitted on."""
RIDGE = 1e-2
"""The penalty, as a share of the features' mean variance."""
WHITENING = 0.5
"""Which power of its standard deviation each direction is divided by: 0 leaves the features as they are."""
REST = 0.5
"""How long what only the full network knows is, relative to what the narrowest width knows too."""


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
        Maps by canonical width; the full network's is that of `embedding`. Those of the widest and of the narrowest
        width are among them if the space is new: they make it.
    """
    preprocessing = Preprocessing.of(net)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    chosen = images.subset(order[:IMAGES].sort().values)
    needed = widths_to_embed(net, widths)
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
    target = embedding(maps[widest], features[widest], features[narrowest])
    return maps | {width: fit_map(features[width], target) for width in needed if width not in maps}


def widths_to_embed(net: Slimmable, widths: Sequence[Width]) -> list[Width]:
    """The canonical widths whose features `fit_space` needs, the full network first."""
    return list(dict.fromkeys(net.canonical(width) for width in (FULL, Width(net.min_width), *widths)))


def images_to_fit(net: Slimmable, images: Images, widths: Sequence[Width]) -> int:
    """What `fit_space` reports as progress in all."""
    return min(IMAGES, len(images)) * len(widths_to_embed(net, widths))


def common_space(full: Tensor, narrow: Tensor) -> tuple[Probe, Probe]:
    """The maps of the full network together with the narrowest width, and of the narrowest width, into a new space.

    The narrowest width's own features, half whitened, come first. What is left of the full network's after what they
    tell of them, half whitened, comes last; there the narrowest width alone has zeros. The space has as many numbers as
    `full`, unless the last part had fewer than the first then.

    Args:
        full: N x C, features of the full network.
        narrow: N x D, those of the narrowest width, of the same images.
    """
    own, told = half_whitened(narrow), fit_map(narrow, full)
    rest = half_whitened(full - told.scores(narrow), max(full.shape[1] - narrow.shape[1], narrow.shape[1]))
    numbers, features = len(rest.bias), full.shape[1]
    above = torch.cat([own.weight, own.weight.new_zeros(len(own.bias), features)], dim=1)
    below = torch.cat([-rest.weight @ told.weight, rest.weight], dim=1)
    return (
        Probe(torch.cat([above, below]), torch.cat([own.bias, rest.bias - rest.weight @ told.bias])),
        Probe(F.pad(own.weight, (0, 0, 0, numbers)), F.pad(own.bias, (0, numbers))),
    )


def embedding(full_map: Probe, full: Tensor, narrow: Tensor) -> Tensor:
    """Where the full network has images in the space.

    Args:
        full_map: Of the full network together with the narrowest width. In a space of an earlier version, and in that
            of a network of one width, it is of the full network alone.
        full: N x C, features of the full network.
        narrow: N x D, those of the narrowest width, of the same images.
    """
    if full_map.weight.shape[1] == full.shape[1]:
        return full_map.scores(full)
    return with_even_parts(full_map.scores(torch.cat([narrow, full], dim=1)), narrow.shape[1])


def with_even_parts(values: Tensor, first: int) -> Tensor:
    """Vectors (N x S) whose first numbers have the length 1, and whose last ones `REST`.

    >>> with_even_parts(torch.tensor([[3.0, 4.0, 7.0]]), 2)
    tensor([[0.6000, 0.8000, 0.5000]])
    """
    return torch.cat([F.normalize(values[:, :first], dim=1), REST * F.normalize(values[:, first:], dim=1)], dim=1)


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
