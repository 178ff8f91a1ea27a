"""The paper's tables as data, and the case of each row: a recipe, and what the row changes in it."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any

from us3l.objective.methods import PLAIN
from us3l.paper.scales import ScaleName, scale_of
from us3l.system.errors import UserError
from us3l.training.recipes import Recipe, named, twin
from us3l.training.run_config import with_settings

Row = dict[str, str]


@cache
def table(name: str) -> list[Row]:
    """Return the rows of a table, by its LaTeX label; `-` is a collapsed model."""
    text = (files("us3l.paper") / "tables" / f"{name}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


# PLAIN is what the ablations share unless they vary it: the best composition of `app-ablation` (case 23).
DYNAMIC: dict[str, Any] = {"max_first": True, "gradual": True}


@dataclass(frozen=True)
class Case:
    """One row of a table: a recipe of the paper's, by name, and what the row changes in it."""

    name: str
    recipe: str
    method: str | None = None
    objective: dict[str, Any] = field(default_factory=dict, hash=False)
    settings: dict[str, Any] = field(default_factory=dict, hash=False)
    """Other settings of the recipe by their bare names, such as `lr`."""
    longer: int = 1
    """Times the recipe's epochs."""
    teacher: str | None = None
    """The pretrained network that teaches, in the table's words: it has to be trained first, and given by --teacher."""

    def apply(self, recipe: Recipe) -> Recipe:
        """Another recipe with this case's method, objective and backbone."""
        changed = recipe.with_method(self.method) if self.method else recipe
        changed = changed.with_objective(**self.objective)
        backbone, memory = named(self.recipe).network.backbone, changed.objective.teacher_memory
        changed = replace(
            changed,
            network=replace(changed.network, backbone=backbone),
            objective=replace(changed.objective, teacher_memory=memory / self.longer),  # of as many steps
            epochs=self.longer * changed.epochs,
        )
        return with_settings(changed, self.settings)

    def at_scale(self, scale: ScaleName) -> Recipe:
        """The recipe of this row as the paper has it, its twin for CPUs, or that of `us3l reproduce` at small scale."""
        return self.apply(named(twin(self.recipe)) if scale == "mini" else scale_of(scale).recipe(self.recipe))


def loss_design(row: Row) -> dict[str, Any]:
    base = "mse" if row["Base Loss"] == "MSE" else "infonce"
    # The table writes a plain yes where there is nothing to share: InfoNCE has no predictor.
    head = {"no": "none", "yes (Share)": "shared", "yes (New)": "new", "yes": "new"}[row["Asymmetric Distill Head"]]
    return {
        **PLAIN,
        "base_loss": base,
        "distill_loss": {"no": "none", "MSE": "mse", "InfoNCE": "infonce"}[row["Distill Loss"]],
        "head": head,
        "momentum_base": (momentum := yes(row["Momentum Target Base model"])),
        "projector_norm": base == "mse" and not momentum,  # SimSiam's, in the authors' code
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
    changes = PLAIN if row["Method"] == "Ours" else {}
    return changes | ({"alpha": 0.05} if yes(row["Group Regularization"]) else {})


def strategies(row: Row) -> dict[str, Any]:
    changes = PLAIN | (DYNAMIC if yes(row["Dynamic Sampling"]) else {})
    return changes | ({"alpha": 0.05} if yes(row["Group Reg."]) else {})


ABLATIONS: dict[str, Callable[[Row], dict[str, Any]]] = {
    "app-ablation": loss_design,
    "app-ablation-sample": sampling,
    "intersect": sandwich,
    "app-ablation-reg": regulariser,
    "app-ablation-reg-for-byol": regulariser_alone,
    "ablation1": strategies,
}
CIFAR = {
    "R-18": "cifar-resnet18",
    "R-50": "cifar-resnet50",
    "MBv2": "cifar-mobilenet",
    "ResNet-18": "cifar-resnet18",
    "ResNet-50": "cifar-resnet50",
    "MobileNetv2": "cifar-mobilenet",
}
# The recipes and "Ours" of the tables that compare methods.
COMPARISONS: dict[str, tuple[dict[str, str], str]] = {
    "main-cifar100": (CIFAR, "us3l"),
    "main-vit-cifar10": ({"ViT-Tiny": "cifar-vit-tiny", "ViT-Small": "cifar-vit-small"}, "us3l-mocov3"),
    "main-imagenet": ({"ResNet-18": "imagenet-resnet18", "ResNet-50": "imagenet-resnet50"}, "us3l-byol"),
}
MOTIVATION = {
    ("Supervised", "Individual"): "supervised",
    ("Supervised", "S-Net"): "s-net",
    ("Supervised", "S-Net+Distill"): "s-net-distill",
    ("SimSiam", "Individual"): "simsiam",
    ("SimSiam", "S-Net"): "s-net-simsiam",
    ("SimSiam", "S-Net+Distill"): "s-net-simsiam-distill",
}
TABLES = (*COMPARISONS, "motivation", *ABLATIONS)


def cases(name: str) -> list[Case]:
    """All cases of a table.

    Args:
        name: The table's, such as "main-cifar100".

    Returns:
        One per row, in the table's order.
    """
    if name not in TABLES:
        raise UserError(f"no table {name!r} has cases: choose from {', '.join(TABLES)}")
    return [case_of(name, f"{name}/{number}", row) for number, row in enumerate(table(name), start=1)]


def case_of(name: str, case_name: str, row: Row) -> Case:
    """Return the case of a table's row."""
    if name in ABLATIONS:
        alone = row["Method"].lower() if row.get("Model Type") == "individual" else None
        return Case(case_name, CIFAR[row.get("Backbone", "R-18")], alone, ABLATIONS[name](row))
    if name == "motivation":
        if row["Method"] == "Ours":  # whose figures are those of this case
            return replace(case("app-ablation/17"), name=case_name)
        return Case(case_name, "cifar-resnet18", MOTIVATION[row["Type"], row["Method"]])
    recipes, ours = COMPARISONS[name]
    method, _, epochs = row["Method"].partition(" (")
    return Case(
        case_name,
        recipes[row["Backbone"]],
        ours if method == "Ours" else method.lower().replace("+", "-"),
        longer=2 if epochs == "800ep)" else 1,
        teacher=None if row.get("Pretrained Teacher", "no") == "no" else row["Pretrained Teacher"],
    )


def case(name: str) -> Case:
    """A row of one of the paper's tables, as changes of a recipe.

    Args:
        name: TABLE/NUMBER, rows being counted from 1.

    Returns:
        The case; its `at_scale` gives a whole recipe.

    >>> case("app-ablation/23").objective["head"], case("main-cifar100/4").method
    ('new', 'seed')
    """
    label, _, number = name.rpartition("/")
    rows = cases(label or name)
    if not number.isdigit() or not 1 <= int(number) <= len(rows):
        raise UserError(f"no case {name!r}: table {label} has cases {label}/1 to {label}/{len(rows)}")
    return rows[int(number) - 1]


def yes(text: str) -> bool:
    """Return whether a table says yes; in some it says more after the word."""
    return text.startswith("yes")
