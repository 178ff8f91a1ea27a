"""`us3l recipes`"""

from __future__ import annotations

from dataclasses import dataclass

from rich.table import Table

from us3l.cli.parse import parse


@dataclass(frozen=True)
class Recipes:
    """The names that `us3l pretrain` knows: recipes, methods, and rows of the paper's tables.

    examples:
      us3l recipes
      us3l pretrain photos/ --out runs/a --recipe mini --method us-simsiam
      us3l pretrain photos/ --out runs/b --case app-ablation/3
    """


def main(arguments: list[str]) -> int:
    from us3l.console import Console

    parse(Recipes, "recipes", arguments)
    console = Console()
    console.print(recipes_table(), methods_table(), cases_table(), sep="\n")
    return 0


def recipes_table() -> Table:
    from us3l.training.recipes import RECIPES

    table = Table("--recipe", "what it is", "settings", box=None, title="Recipes", title_justify="left")
    for name, (recipe, text) in RECIPES.items():
        optimiser = recipe.optimiser
        warmup = f", warm-up {optimiser.warmup:g}" if optimiser.warmup else ""
        settings = (
            f"{recipe.network.backbone} base {recipe.network.base}, {recipe.views.size} px, batch {recipe.batch_size}, "
            f"{recipe.epochs} epochs, {optimiser.algorithm} lr {optimiser.lr:g}{warmup}"
        )
        table.add_row(name, text, settings)
    return table


def methods_table() -> Table:
    from us3l.cli.screen import as_typed
    from us3l.objective.methods import METHODS

    table = Table("--method", "what it is", box=None, title="\nMethods", title_justify="left")
    for name, chosen in METHODS.items():
        table.add_row(name, as_typed(chosen.about))
    return table


def cases_table() -> Table:
    from us3l.paper.cases import COMPARISONS, TABLES, cases
    from us3l.paper.tables import table as rows

    title = "\nCases: rows of the paper's tables, trained by the recipe's twin for CPUs, or with --scale paper"
    table = Table(box=None, title=title, title_justify="left")
    for header in ("--case", "recipe", "method", "the row"):
        table.add_column(header, no_wrap=header != "the row")
    for name in TABLES:
        if name not in COMPARISONS:
            table.add_row(f"{name}/1 to /{len(cases(name))}")
            continue
        for found, row in zip(cases(name), rows(name), strict=True):
            told = f"{row['Backbone']} {row['Method']}"
            table.add_row(
                found.name, found.recipe, found.method, told + (f" by {found.teacher}" if found.teacher else "")
            )
    return table
