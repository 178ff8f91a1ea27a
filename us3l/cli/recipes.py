"""`us3l recipes`"""

from __future__ import annotations

from dataclasses import dataclass

from us3l.cli.parse import parse


@dataclass(frozen=True)
class Recipes:
    """The names that `us3l pretrain` knows: recipes, methods, and cases of the paper's ablations.

    examples:
      us3l recipes
      us3l pretrain photos/ --out runs/a --recipe mini --method us-simsiam
      us3l pretrain photos/ --out runs/b --case app-ablation/3
    """


def main(arguments: list[str]) -> int:
    from rich.console import Console
    from rich.table import Table

    from us3l.objective.methods import METHODS
    from us3l.paper.cases import READERS, cases
    from us3l.training.recipes import RECIPES

    parse(Recipes, "recipes", arguments)
    table = Table("option", "name", "what it is", box=None)
    for name, (recipe, text) in RECIPES.items():
        settings = (
            f"{recipe.network.backbone} base {recipe.network.base}, {recipe.views.size} px, batch {recipe.batch_size}, "
            f"{recipe.epochs} epochs, lr {recipe.optimiser.lr:g}"
        )
        table.add_row("--recipe", name, f"{text}: {settings}")
    for name, chosen in METHODS.items():
        table.add_row("--method", name, chosen.about)
    for name in READERS:
        table.add_row("--case", f"{name}/1 to /{len(cases(name))}", "rows of the paper's table of that label")
    Console().print(table)
    return 0
