"""`us3l recipes`"""

from __future__ import annotations

from dataclasses import dataclass

from us3l.commands.parse import parse


@dataclass(frozen=True)
class Recipes:
    """The names that `us3l pretrain` knows: recipes, methods, and rows of the paper's tables.

    examples:
      us3l recipes
      us3l pretrain photos/ --out runs/a --recipe mini --method us-simsiam
      us3l pretrain photos/ --out runs/b --case app-ablation/3
    """


def main(arguments: list[str]) -> None:
    parse(Recipes, "recipes", arguments)
    from us3l.commands.screen import as_typed
    from us3l.reporting.listings import cases_table, methods_table, recipes_table
    from us3l.system.console import Console

    Console().print(*(table(as_typed) for table in (recipes_table, methods_table, cases_table)), sep="\n")
