"""Backbones: families of plain networks, by name."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from us3l.families.family import Backbone, Family
from us3l.system.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from torch import nn

    from us3l.slimmable import Slimmable

# Imported when first used: `us3l pretrain --help` must not wait for torch.
_HOMES = {
    "resnet18": ("resnet", "ResNetFamily"),
    "resnet50": ("resnet", "ResNetFamily"),
    "mobilenet_v2": ("mobilenet", "MobileNetFamily"),
    "efficientnet_b0": ("efficientnet", "EfficientNetFamily"),
    "convnext_atto": ("convnext", "ConvNeXtFamily"),
    "convnext_tiny": ("convnext", "ConvNeXtFamily"),
    "vit_tiny": ("vit", "ViTFamily"),
    "vit_small": ("vit", "ViTFamily"),
}
BACKBONES = tuple(_HOMES)
FROM_TIMM = ("efficientnet_b0", "convnext_atto", "convnext_tiny")
"""Those that are made of timm's blocks, which not everybody has installed."""


@dataclass(frozen=True)
class Individual(Family):
    """The network of one width of a family, as a family of its own."""

    family: Family
    individual: float

    def __post_init__(self) -> None:
        kept = "classifier", "channels", "translate"
        for name in (*kept, "name", "image_size", "usual_size", "transformer", "segments", "chain", "feature_maps"):
            object.__setattr__(self, name, getattr(self.family, name))

    def signature(self, _: float) -> Hashable | None:
        return self.family.signature(self.individual)

    def __call__(self, _: float) -> nn.Module:
        return self.family(self.individual)

    def describe(self) -> dict[str, Any]:
        description = self.family.describe()
        return description | {"options": description["options"] | {"individual": self.individual}}


def create(
    name: str,
    *,
    min_width: float = 0.25,
    switchable: Sequence[float] | None = None,
    individual: float | None = None,
    **options: Any,
) -> Slimmable:
    """Return a new slimmable network by name, at random weights.

    Args:
        name: "resnet18", "resnet50", "mobilenet_v2", "vit_tiny" or "vit_small"; with timm installed also
            "efficientnet_b0", "convnext_atto" or "convnext_tiny".
        min_width: The narrowest width.
        switchable: If given, the only widths, each with batch norms of its own: see `Slimmable`.
        individual: Make the network of this width alone, for comparison; it is then called width 1.
        **options: All take `num_classes` (0: features, else logits) and `base`, with which all channel counts grow
            (64: the paper's). Convolutional ones take `stem` ("imagenet" or "cifar"); ViTs take `image_size`,
            `patch`, `heads`, `depth`, `pool` ("cls" or "mean"), `positions` ("sincos" or "learned") and
            `frozen_patches`.

    Returns:
        The network, in training mode.

    >>> net = create("resnet18", stem="cifar", base=16)
    >>> len(net.widths) > 10
    True
    """
    return one_or_all(family(name, **options), min_width, switchable, individual)


def one_or_all(
    plain: Family, min_width: float, switchable: Sequence[float] | None, individual: float | None
) -> Slimmable:
    """Return a family's networks on shared weights, or the network of one width alone: see `create`."""
    from us3l.slimmable import Slimmable

    if individual is None:
        return Slimmable(plain, min_width, switchable)
    if switchable is not None or not 0 < individual <= 1:
        raise UserError(f"individual={individual} must lie above 0 and at most at 1, and excludes switchable widths")
    return Slimmable(Individual(plain, individual), min_width=1.0)


def options_for(name: str, stem: str, size: int, frozen_patches: bool = False) -> dict[str, Any]:
    """Return the options of `create` that make a backbone fit its images.

    Args:
        name: Of the backbone.
        stem: "cifar" for small images, which gives ViTs patches of 4 pixels, else "imagenet".
        size: Side of the images, in pixels.
        frozen_patches: Leave a ViT's patch embedding as it was drawn.

    Returns:
        Options for `create`; those that a backbone does not have are left out.

    >>> options_for("resnet18", "cifar", 32), options_for("vit_tiny", "cifar", 32)["patch"]
    ({'stem': 'cifar'}, 4)
    """
    return _kind(name).fit(stem, size, frozen_patches)


def family(name: str, **options: Any) -> Backbone:
    """Return a backbone as a function of a width."""
    kind: Any = _kind(name)
    try:
        return kind(name, **options)
    except TypeError as error:
        raise UserError(f"{name} does not take these options: {error}") from None


def recognise(shapes: Mapping[str, Sequence[int]]) -> dict[str, Any] | None:
    """Return which backbone has tensors of these shapes at width 1.

    Args:
        shapes: By the tensors' names, here, in torchvision or in timm.

    Returns:
        The settings of a recipe's network that say so, None if it is none of ours. A ViT's heads are taken to have 64
        channels each: shapes do not tell.
    """
    kinds = dict.fromkeys(_kind(name) for name in BACKBONES)
    return next((network for kind in kinds if (network := kind.recognise(shapes)) is not None), None)


def _kind(name: str) -> type[Backbone]:
    if name not in BACKBONES:
        raise UserError(f"unknown backbone {name!r}: {did_you_mean(name, BACKBONES)}")
    module, kind = _HOMES[name]
    return getattr(import_module(f"us3l.families.{module}"), kind)
