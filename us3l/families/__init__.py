"""Backbones: families of plain networks, by name."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from us3l.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from torch import nn

    from us3l.slimmable import Family, Slimmable

# Imported when first used: `us3l pretrain --help` must not wait for torch.
_HOMES = {
    "resnet18": ("resnet", "ResNetFamily"),
    "resnet50": ("resnet", "ResNetFamily"),
    "mobilenet_v2": ("mobilenet", "MobileNetFamily"),
    "vit_tiny": ("vit", "ViTFamily"),
    "vit_small": ("vit", "ViTFamily"),
}
BACKBONES = tuple(_HOMES)


@dataclass(frozen=True)
class Individual:
    """The network of one width of a family, as a family of its own."""

    family: Any
    individual: float

    @property
    def name(self) -> str:
        return self.family.name

    def signature(self, _: float) -> Hashable:
        return self.family.signature(self.individual)

    def __call__(self, _: float) -> nn.Module:
        return self.family(self.individual)


def create(
    name: str,
    *,
    min_width: float = 0.25,
    switchable: Sequence[float] | None = None,
    individual: float | None = None,
    **options: Any,
) -> Slimmable:
    """A new slimmable network by name, at random weights; `switchable` is explained at `Slimmable`.

    `individual` makes it the network of that width alone, for comparison: its width 1 is what the others call that.

    All take `num_classes` (0: features, else logits) and `base`, with which all channel counts grow (64: the paper's).
    ResNets and MobileNetV2 take `stem` ("imagenet" or "cifar"); ViTs take `image_size`, `patch`, `heads`, `depth`,
    `pool` ("cls" or "mean"), `positions` ("sincos" or "learned") and `frozen_patches`.

    >>> net = create("resnet18", stem="cifar", base=16)
    >>> len(net.widths) > 10
    True
    """
    from us3l.slimmable import Slimmable

    plain = family(name, **options)
    if individual is None:
        return Slimmable(plain, min_width, switchable)
    if switchable is not None or not 0 < individual <= 1:
        raise UserError(f"individual={individual} must lie above 0 and at most at 1, and excludes switchable widths")
    return Slimmable(Individual(plain, individual), min_width=1.0)


def family(name: str, **options: Any) -> Family:
    """A backbone as a function of a width."""
    if name not in _HOMES:
        raise UserError(f"unknown backbone {name!r}: {did_you_mean(name, BACKBONES)}")
    module, kind = _HOMES[name]
    try:
        return getattr(import_module(f"us3l.families.{module}"), kind)(name, **options)
    except TypeError as error:
        raise UserError(f"{name} does not take these options: {error}") from None
