"""`us3l backbones`"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from us3l.commands.parse import parse


@dataclass(frozen=True)
class Backbones:
    """List the networks that us3l makes slimmable, and what they cost at some widths.

    MACs are multiply-accumulates of convolutions, linear layers and attention for one image; "with norms" also counts
    norms and pooling, as the paper does. "networks" is the number of distinct networks from the narrowest width to 1.

    examples:
      us3l backbones
      us3l backbones --size 32 --stem cifar --classes 0
      us3l backbones --widths 1 0.37
    """

    size: int = 224
    """Side of the images, in pixels."""
    stem: Literal["imagenet", "cifar"] = "imagenet"
    """First layers: "cifar" is for small images, and gives ViTs patches of 4 pixels instead of 16."""
    classes: int = 1000
    """Classes of a classifier at the end (0: features only)."""
    widths: tuple[float, ...] = (1.0, 0.75, 0.5, 0.25)
    """Widths to show."""


def main(arguments: list[str]) -> None:
    command = parse(Backbones, "backbones", arguments)
    from us3l.reporting.listings import backbones_table
    from us3l.system.console import Console

    Console().print(backbones_table(**vars(command)))
