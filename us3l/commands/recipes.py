"""`us3l recipes`: the names that pretrain knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from us3l.commands.command import Command, command

if TYPE_CHECKING:
    from rich.table import Table

    from us3l.commands.screen import CommandScreen


@dataclass(frozen=True)
class Recipes(Command):
    """The names that `us3l pretrain` knows: recipes, methods, and rows of the paper's tables.

    examples:
      us3l recipes
      us3l pretrain photos/ --out runs/a --recipe mini --method us-simsiam
      us3l pretrain photos/ --out runs/b --case app-ablation/3
    """


@command(Recipes)
def recipes(settings: Recipes) -> list[Table]:  # noqa: ARG001
    """List recipes, methods, and rows of the paper's tables."""
    from us3l.commands.screen import as_typed
    from us3l.reporting.listings import cases_table, methods_table, recipes_table

    return [table(as_typed) for table in (recipes_table, methods_table, cases_table)]


def main(settings: Recipes, screen: CommandScreen) -> None:
    screen.console.print(*recipes.with_settings(settings), sep="\n")
