"""The names there are: recipes, methods, cases of the paper, and backbones.

`typed` shows a text that names settings in backquotes, such as the command line with its flags.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Literal

from rich import box
from rich.table import Table


def recipes_table(typed: Callable[[str], str] = str) -> Table:
    from us3l.training.recipes import RECIPES

    table = Table(typed("`recipe`"), "what it is", "settings", box=None, title="Recipes", title_justify="left")
    for name, (recipe, text) in RECIPES.items():
        optimiser = recipe.optimiser
        warmup = f", warm-up {optimiser.warmup:g}" if optimiser.warmup else ""
        settings = (
            f"{recipe.network.backbone} base {recipe.network.base}, {recipe.views.size} px, batch {recipe.batch_size}, "
            f"{recipe.epochs} epochs, {optimiser.algorithm} lr {optimiser.lr:g}{warmup}"
        )
        table.add_row(name, text, settings)
    return table


def methods_table(typed: Callable[[str], str] = str) -> Table:
    from us3l.objective.methods import METHODS

    table = Table(typed("`method`"), "what it is", box=None, title="\nMethods", title_justify="left")
    for name, chosen in METHODS.items():
        table.add_row(name, typed(chosen.about))
    return table


def cases_table(typed: Callable[[str], str] = str) -> Table:
    from us3l.paper.cases import COMPARISONS, TABLES, cases
    from us3l.paper.cases import table as rows

    title = "\nCases: rows of the paper's tables, trained by the recipe's twin for CPUs, or with `scale='paper'`"
    table = Table(box=None, title=typed(title), title_justify="left")
    for header in (typed("`case`"), "recipe", "method", "the row"):
        table.add_column(header, no_wrap=header != "the row")
    for name in TABLES:
        if name not in COMPARISONS:
            table.add_row(f"{name}/1 to /{len(cases(name))}")
            continue
        for case, row in zip(cases(name), rows(name), strict=True):
            teacher = f" by {case.teacher}" if case.teacher else ""
            table.add_row(case.name, case.recipe, case.method, f"{row['Backbone']} {row['Method']}{teacher}")
    return table


def backbones_table(size: int, stem: Literal["imagenet", "cifar"], classes: int, widths: Sequence[float]) -> Table:
    """Return what each backbone costs at some widths.

    Args:
        size: Side of the images in pixels.
        stem: First layers: "imagenet" or "cifar".
        classes: Of a classifier at the end; 0 for features only.
        widths: Those to show.
    """
    import torch

    from us3l.costs import cost
    from us3l.families import BACKBONES, FROM_TIMM, create, options_for
    from us3l.tensors import WithoutFilling

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for header in ("backbone", "networks", "width", "params (M)", "MACs (G)", "with norms (G)"):
        table.add_column(header, justify="left" if header == "backbone" else "right", no_wrap=True)
    without = () if find_spec("timm") else FROM_TIMM
    with torch.device("meta"), WithoutFilling():  # shapes are all that costs depend on
        nets = {
            name: create(name, num_classes=classes, **options_for(name, stem, size))
            for name in BACKBONES
            if name not in without
        }
    for name, net in nets.items():
        for width in widths:
            price = cost(net, width, size=size)
            labels = (name, str(len(net.widths))) if width == widths[0] else ("", "")
            macs = (f"{count / 1e9:.3f}" for count in (price.macs, price.macs_with_norms))
            table.add_row(*labels, f"{width:g}x", f"{price.params / 1e6:.2f}", *macs)
        table.add_section()
    return table
