"""Quality of features without any label: RankMe, LiDAR, and several kinds of agreement with the full network.

The first two count the directions that features use, so they are at most the number of channels: compare networks of
one width by them, not widths with each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat

import torch
from torch import Tensor
from torch.nn import functional as F

from us3l.data.augment import random_views
from us3l.data.preprocessing import Preprocessing
from us3l.data.view_settings import Views
from us3l.evaluation.features import embed_all
from us3l.evaluation.prepare import FEWEST, EvaluationInputs, enough_images
from us3l.system.devices import for_doubles
from us3l.system.errors import UserError
from us3l.system.progress import Advance
from us3l.width import FULL, Width

NEIGHBOURS = FEWEST // 5
"""Those of an image that are compared. Of fewer than `FEWEST` images, most would be neighbours."""
IMAGES = 1000
"""Those that are looked at, at most."""
COMPARED = 500
"""Of these, whose neighbours are compared."""
VIEWED, VIEWS = 500, 4
"""Of these, how many are seen in random views, and in how many each."""
BATCH = 250
RIDGE = 1e-4
FOLDS = 4
"""Parts of the images; each is predicted by a map that was fitted on the others."""
SHRINKAGE = 1.0
"""The penalty of that map, as a share of the variance of a channel."""


def rankme(features: Tensor) -> float:
    """How many directions features use: the exponential of the entropy of their normalised singular values.

    Garrido et al., "RankMe: Assessing the Downstream Performance of Pretrained Self-Supervised Representations by Their
    Rank" (2023). The features are not centred.

    Args:
        features: Images x channels, finite.

    Returns:
        From 1, when all images have the same direction, to the number of channels or images; 0 if all are 0.

    >>> round(rankme(torch.eye(4)), 6)
    4.0
    """
    return effective_rank(torch.linalg.svdvals(_exact(features)))


def lidar(features: Tensor) -> float:
    """How many directions tell images apart, whatever their views: the effective rank of the scatter between images,
    whitened by the scatter within them.

    Thilak et al., "LiDAR: Sensing Linear Probing Performance in Joint Embedding SSL Architectures" (2023), with two
    changes. The mean of q views keeps 1/q of the scatter within an image, which looks like rank; it is taken away, so
    that a few views do. And the ridge of the whitening is relative to the features' mean square, not absolute.

    Args:
        features: Images x views x channels, finite; at least two of each of the first two.

    Returns:
        From 1 to the number of channels or images; 0 if nothing tells images apart.
    """
    values = _exact(features)
    images, views = values.shape[:2]
    means = values.mean(dim=1)
    between = means.T.cov()
    apart = (values - means[:, None]).flatten(0, 1)
    within = apart.T @ apart / (images * (views - 1))
    ridge = RIDGE * values.square().mean()
    if ridge == 0:
        return 0.0
    sizes, directions = torch.linalg.eigh(within)
    sizes = sizes.clamp(min=0)
    whitening = directions * (sizes + ridge).rsqrt()
    left_in_means = (sizes / (sizes + ridge) / views).diag()
    return effective_rank(torch.linalg.eigvalsh(whitening.T @ between @ whitening - left_in_means))


def effective_rank(spectrum: Tensor) -> float:
    """The exponential of the entropy of a spectrum that is normalised to sum 1; negative values count as 0.

    >>> round(effective_rank(torch.tensor([2.0, 2.0, 2.0, 0.0])), 6)
    3.0
    """
    shares = spectrum.clamp(min=0)
    shares = shares / shares.sum()
    return 0.0 if shares.isnan().any() else torch.special.entr(shares).sum().exp().item()


def shared_neighbours(features: Tensor, full: Tensor) -> float:
    """Of the images' nearest neighbours by the full network, how many are also nearest by a narrower one.

    What neighbours an image has is what features are used for, in search as in kNN. Chance is about
    100 * NEIGHBOURS / images percent.

    Args:
        features: The narrower network's, images x channels; at least `FEWEST` images.
        full: The full network's of the same images.

    Returns:
        The percentage of shared neighbours.
    """
    if len(features) < FEWEST:
        raise UserError(f"agreement needs at least {FEWEST} images, not {len(features)}")
    shared = (neighbours(features)[:, :, None] == neighbours(full)[:, None, :]).any(2)
    return 100 * shared.float().mean().item()


def neighbours(features: Tensor) -> Tensor:
    """The nearest other images of each image by the cosine of their features: N x NEIGHBOURS."""
    directions = F.normalize(features)
    return (directions @ directions.T).fill_diagonal_(-torch.inf).topk(NEIGHBOURS).indices


def linear_cka(features: Tensor, full: Tensor) -> float:
    """How far the similarities of images by a narrower network are those by the full one, whatever the directions.

    Kornblith et al., "Similarity of Neural Network Representations Revisited" (2019), in percent.

    Args:
        features: The narrower network's, images x channels.
        full: The full network's of the same images.

    Returns:
        From 0 to 100.

    >>> values = torch.tensor([[0.0, 1.0], [1.0, 0.0], [2.0, 2.0]])
    >>> round(linear_cka(values, -3 * values), 6)
    100.0
    """
    x, y = (values - values.mean(0) for values in (_exact(features), _exact(full)))
    scale = (x.T @ x).norm() * (y.T @ y).norm()
    return 100 * ((y.T @ x).square().sum() / scale).item() if scale > 0 else 0.0


def predicted_share(features: Tensor, full: Tensor) -> float:
    """How much of the full network's features a linear map from a narrower one's predicts, of images new to the map.

    A linear probe maps features in the same way, so what is lost here is lost to it too.

    Args:
        features: The narrower network's, images x channels; at least `FOLDS` images, in any order.
        full: The full network's of the same images.

    Returns:
        Percent of the variance, relative to what the full network's features predict of themselves; 0 if either is
        nothing. All channels count alike, whatever their scale.

    >>> values = torch.randn(200, 6, generator=torch.Generator().manual_seed(0))
    >>> round(predicted_share(3 * values + 1, values), 3)
    100.0
    >>> predicted_share(values[:, :3], values) < 60
    True
    """
    x, y = (_standardised(_exact(values)) for values in (features, full))
    own = _predicted(y, y)
    return 100 * (max(0.0, _predicted(x, y)) / own) if own > 0 else 0.0


def _predicted(x: Tensor, y: Tensor) -> float:
    """The share of the variance of y that ridge regression on x predicts, each fold from the others."""
    similarities, folds = x @ x.T, torch.arange(len(x), device=x.device) % FOLDS
    error = torch.zeros((), dtype=y.dtype, device=y.device)
    for fold in range(FOLDS):
        held, rest = folds == fold, folds != fold
        among = similarities[rest][:, rest]
        among.diagonal().add_(SHRINKAGE * len(among))
        error += (y[held] - similarities[held][:, rest] @ torch.linalg.solve(among, y[rest])).square().sum()
    total = y.square().sum()
    return (1 - error / total).item() if total > 0 else 0.0


def _standardised(values: Tensor) -> Tensor:
    """Channels of mean 0 and variance 1, but for those that are constant."""
    centred = values - values.mean(0)
    deviations = centred.square().mean(0).sqrt()
    return torch.where(deviations > 1e-9 * values.abs().amax(), centred / deviations, 0.0)


def quality(features: Tensor, viewed: Tensor, full: Tensor | None = None) -> dict[str, float]:
    """All that is to be said of one width.

    Args:
        features: Of images, N x channels.
        viewed: Of random views, images x views x channels.
        full: The full network's features of the same images; None leaves agreement out.

    Returns:
        By the names of `QUALITIES`. Features that are not finite have none, and too few images no agreement.
    """
    if not (features.isfinite().all() and viewed.isfinite().all()):
        return {}
    found = {"rankme": rankme(features[:IMAGES]), "lidar": lidar(viewed)}
    if full is not None and len(features) >= FEWEST and full.isfinite().all():
        found["agreement"] = shared_neighbours(features[:COMPARED], full[:COMPARED])
    return found


@torch.no_grad()
def embed_views(
    networks: Sequence[Callable[[Tensor], Tensor]],
    pixels: Tensor,
    views: Views,
    preprocessing: Preprocessing,
    progress: Advance | None = None,
) -> list[Tensor]:
    """Features of random views of the first images, the same views at each call.

    Args:
        networks: Each makes features of a batch.
        pixels: uint8, N x 3 x H x W.
        views: How views are made.
        preprocessing: How they are normalised.
        progress: Called with each number of views embedded.

    Returns:
        For each network images x `VIEWS` x channels, of at most `VIEWED` images.
    """
    generator = torch.Generator().manual_seed(0)
    found: list[list[Tensor]] = [[] for _ in networks]
    chosen = pixels[:VIEWED]
    for part in chosen.tensor_split(max(1, len(chosen) * VIEWS // BATCH)):
        seen = random_views(part, views, generator, VIEWS, mean=preprocessing.mean, std=preprocessing.std)
        batch = torch.cat(seen).contiguous(memory_format=torch.channels_last)
        for network, values in zip(networks, found, strict=True):
            values.append(network(batch).unflatten(0, (VIEWS, -1)).transpose(0, 1))
            if progress:
                progress(len(batch))
    return [torch.cat(values) for values in found]


def measure_quality(prepared: EvaluationInputs, progress: Advance | None = None) -> dict[Width, dict[str, float]]:
    """Measure RankMe, LiDAR and agreement with the full network at each width; labels are not looked at.

    Args:
        prepared: What to look at; width 1 must be calibrated too. Of its test images at most `IMAGES` are looked at,
            always the same (see `enough_images`).
        progress: Called with each number of images embedded, of `images_to_look_at(...)` in all.

    Returns:
        By width, then by the names of `QUALITIES`. Nothing, if there are too few images.
    """
    net, images = prepared.net, enough_images(prepared.train, prepared.test)
    if images is None:
        return {}
    device = next(net.full.parameters()).device
    sample = images.sample(IMAGES, torch.Generator().manual_seed(0), prepared.preprocessing.resize).to(device)
    networks = {width: net.at(width) for width in (FULL, *prepared.widths)}
    plain = list(networks.values())
    features = embed_all(plain, sample, prepared.preprocessing, progress=progress).values
    viewed = embed_views(plain, sample.images, Views(size=prepared.size), prepared.preprocessing, progress)
    full = features[0] if len(net.widths) > 1 else None
    return dict(zip(networks, map(quality, features, viewed, repeat(full)), strict=True))


def images_to_look_at(prepared: EvaluationInputs) -> int:
    """Return what `measure_quality` reports as progress in all."""
    images = enough_images(prepared.train, prepared.test)
    count = min(IMAGES, len(images)) + VIEWS * min(VIEWED, len(images)) if images else 0
    return count * len({FULL, *prepared.widths})


def _exact(features: Tensor) -> Tensor:
    """In double precision, on a device that has it."""
    return features.detach().to(for_doubles(features.device)).double()
