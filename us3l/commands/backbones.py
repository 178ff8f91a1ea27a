"""`us3l backbones`: the available networks, and what they cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from us3l.commands.command import Command, command

if TYPE_CHECKING:
    from rich.table import Table

    from us3l.commands.screen import CommandScreen


@dataclass(frozen=True)
class Backbones(Command):
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


@command(Backbones)
def backbones(settings: Backbones) -> Table:
    """List the networks, and what they cost at some widths."""
    from us3l.reporting.listings import backbones_table

    return backbones_table(settings.size, settings.stem, settings.classes, settings.widths)


def main(settings: Backbones, screen: CommandScreen) -> None:
    screen.console.print(backbones.with_settings(settings))
