"""Backbones: families of plain networks, by name."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from us3l.errors import UserError

if TYPE_CHECKING:
    from us3l.slimmable import Slimmable

BACKBONES = ("resnet18", "resnet50")


def create(name: str, *, min_width: float = 0.25, **options: Any) -> Slimmable:
    """A new slimmable network by name, at random weights.

    Options of the ResNets: `stem` ("imagenet" or "cifar"), `base` (channels of the first stage, 64 in the paper),
    `num_classes` (0: features, else logits).

    >>> net = create("resnet18", stem="cifar", base=16)
    >>> len(net.widths) > 10
    True
    """
    from us3l.families.resnet import ResNetFamily
    from us3l.slimmable import Slimmable

    if name not in BACKBONES:
        close = get_close_matches(name, BACKBONES, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(BACKBONES)}"
        raise UserError(f"unknown backbone {name!r}: {hint}")
    try:
        family = ResNetFamily(name, **options)
    except TypeError as error:
        raise UserError(f"{name} does not take these options: {error}") from None
    return Slimmable(family, min_width)
