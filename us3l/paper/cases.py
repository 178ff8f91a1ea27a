"""The cases of the paper's ablations: each is a row of a table, turned into changes of a recipe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from us3l.errors import UserError
from us3l.objective.methods import PLAIN, method
from us3l.paper.tables import Row, table
from us3l.training.recipes import Backbone, Recipe

# PLAIN is what the tables share unless they vary it: the best composition of `app-ablation` (case 23), no strategies.
DYNAMIC: dict[str, Any] = {"max_first": True, "gradual": True}
BACKBONES: dict[str, Backbone] = {"R-18": "resnet18", "R-50": "resnet50", "MBv2": "mobilenet_v2"}


@dataclass(frozen=True)
class Case:
    """One row of a table: what it changes in a recipe."""

    name: str
    objective: dict[str, Any]
    backbone: Backbone = "resnet18"

    def apply(self, recipe: Recipe) -> Recipe:
        """The recipe with this case's objective and backbone."""
        changed = recipe.with_objective(**self.objective)
        return replace(changed, network=replace(recipe.network, backbone=self.backbone))


def loss_design(row: Row) -> dict[str, Any]:
    base = "mse" if row["Base Loss"] == "MSE" else "infonce"
    # The table writes a plain yes where there is nothing to share: InfoNCE has no predictor.
    head = {"no": "none", "yes (Share)": "shared", "yes (New)": "new", "yes": "new"}[row["Asymmetric Distill Head"]]
    return {
        **PLAIN,
        "base_loss": base,
        "distill_loss": {"no": "own", "MSE": "mse", "InfoNCE": "infonce"}[row["Distill Loss"]],
        "head": head,
        "momentum_base": yes(row["Momentum Target Base model"]),
        "momentum_sub": yes(row["Sub model"]),
    }


def sampling(row: Row) -> dict[str, Any]:
    return {
        **PLAIN,
        "samples": int(row["Sampling number s"]),
        "max_first": yes(row["Dynamic Sampling Max first"]),
        "gradual": yes(row["Gradually reduce"]),
    }


def sandwich(row: Row) -> dict[str, Any]:
    return {**PLAIN, **(DYNAMIC if yes(row["Dynamic Sampling"]) else {}), "sandwich": yes(row["Sandwich Rule"])}


def regulariser(row: Row) -> dict[str, Any]:
    groups = {} if row["Group number G"] == "-" else {"groups": int(row["Group number G"])}
    return {**PLAIN, "alpha": float(row["Decay rate alpha"]), **groups}


def regulariser_alone(row: Row) -> dict[str, Any]:
    changes = PLAIN if row["Method"] == "Ours" else method(row["Method"].lower()).objective
    return changes | ({"alpha": 0.05} if yes(row["Group Regularization"]) else {})


def strategies(row: Row) -> dict[str, Any]:
    changes = PLAIN | (DYNAMIC if yes(row["Dynamic Sampling"]) else {})
    return changes | ({"alpha": 0.05} if yes(row["Group Reg."]) else {})


READERS: dict[str, Callable[[Row], dict[str, Any]]] = {
    "app-ablation": loss_design,
    "app-ablation-sample": sampling,
    "intersect": sandwich,
    "app-ablation-reg": regulariser,
    "app-ablation-reg-for-byol": regulariser_alone,
    "ablation1": strategies,
}


def cases(name: str) -> list[Case]:
    """All cases of a table, in its order."""
    if name not in READERS:
        raise UserError(f"no table {name!r} has cases: choose from {', '.join(READERS)}")
    return [
        Case(f"{name}/{number}", READERS[name](row), BACKBONES[row.get("Backbone", "R-18")])
        for number, row in enumerate(table(name), start=1)
    ]


def case(name: str) -> Case:
    """A case by its name, TABLE/NUMBER.

    >>> case("app-ablation/23").objective["head"]
    'new'
    """
    known, _, number = name.rpartition("/")
    found = cases(known or name)
    if not number.isdigit() or not 1 <= int(number) <= len(found):
        raise UserError(f"no case {name!r}: table {known} has cases {known}/1 to {known}/{len(found)}")
    return found[int(number) - 1]


def yes(text: str) -> bool:
    return text.startswith("yes")
