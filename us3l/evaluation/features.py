"""Features of frozen networks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from us3l.data.images import Images, ImageSet
from us3l.data.preprocessing import Preprocessing
from us3l.system.devices import for_doubles
from us3l.system.errors import UserError


@dataclass(frozen=True)
class Features:
    """What several networks made of the same images, those that could be read."""

    values: list[Tensor]
    """For each network N x C."""
    labels: Tensor
    damaged: list[str]


def embed(
    network: nn.Module, images: Tensor, size: int, batch: int = 250, progress: Callable[[int], None] | None = None
) -> Tensor:
    """Features of images by one network.

    Args:
        network: A plain network, in eval mode.
        images: Pixels, uint8, N x 3 x H x W.
        size: Side at which the network sees them.
        batch: Images per batch.
        progress: Called with the number of images after each batch.

    Returns:
        N x C.
    """
    return embed_all(
        [network], ImageSet("", images), Preprocessing.usual(size), batch_size=batch, progress=progress
    ).values[0]


@torch.no_grad()
def embed_all(
    networks: Sequence[nn.Module],
    images: Images,
    preprocessing: Preprocessing,
    batch_size: int = 250,
    progress: Callable[[int], None] | None = None,
) -> Features:
    """Features by each of the networks, in one pass over the images; see `Images.batches`.

    They stay on the networks' device, if that can compute with doubles.
    """
    found: list[list[Tensor]] = [[] for _ in networks]
    indices: list[Tensor] = []
    damaged: list[str] = []
    device = next(networks[0].parameters()).device
    kept = for_doubles(device)
    for batch in images.batches(preprocessing, batch_size):
        view = batch.views[0].to(device, memory_format=torch.channels_last)
        for network, values in zip(networks, found, strict=True):
            values.append(network(view).to(kept))
            if progress:
                progress(len(batch))
        indices.append(batch.indices)
        damaged += batch.damaged
    labels = torch.empty(0, dtype=torch.int64) if images.labels is None else images.labels[torch.cat(indices)]
    return Features([torch.cat(values) for values in found], labels.to(kept), damaged)


def check_features(features: Tensor, like: Tensor | None = None) -> None:
    """Raise a `UserError` unless features are finite floats, images x dimensions, as many dimensions as `like`."""
    if (
        features.ndim != 2
        or not features.is_floating_point()
        or (like is not None and features.shape[1] != like.shape[1])
    ):
        wanted = "images x dimensions" if like is None else f"images x {like.shape[1]}"
        raise UserError(f"features must be floats, {wanted}; got {features.dtype}, {tuple(features.shape)}")
    if bad := int((~features.isfinite()).any(1).sum()):
        raise UserError(f"{bad} of {len(features)} images have NaN or infinite features: did training diverge?")


def check_labelled(features: Tensor, labels: Tensor, num_classes: int | None = None) -> int:
    """Return the number of classes (default: the largest label + 1); raise unless each image has a class index."""
    check_features(features)
    if len(features) == 0 or labels.shape != features.shape[:1]:
        raise UserError(f"each training image needs a label; got {len(features)} images, labels {tuple(labels.shape)}")
    if labels.dtype != torch.int64 or labels.min() < 0:
        raise UserError("labels must be class indices 0, 1, 2, ... (int64): is the data labelled?")
    largest = int(labels.max())
    if num_classes is None:
        return largest + 1
    if largest >= num_classes:
        raise UserError(f"label {largest} is outside the {num_classes} classes 0..{num_classes - 1}")
    return num_classes
