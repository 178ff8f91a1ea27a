"""From a table of the paper to the runs that fill it, at the paper's scale or at one for CPUs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from typing import Any

from us3l.objective.sampling import sample_widths
from us3l.objective.spec import memory
from us3l.paper.cases import TABLES, Case, Row, case, cases, table
from us3l.paper.scales import Scale
from us3l.run.identity import EvaluationSplit
from us3l.system.errors import UserError
from us3l.training.recipes import Recipe
from us3l.training.run_config import RENAMED

# The rows of the paper's shorter table of losses, by their cases in the full one.
ABLATION = (1, 3, 7, 8, 9, 12, 15, 17, 18, 19, 20, 22, 23, 24, 25, 27, 28)
IMAGENET = {("R-18", "BYOL"): 1, ("R-18", "Ours"): 3, ("R-50", "BYOL"): 4, ("R-50", "Ours"): 6}
TRANSFER = {"C-10": "cifar10", "C-100": "cifar100", "Flowers": "flowers102", "Pets": "pets", "Dtd": "dtd"}
TEACHERS = {"BYOL R-18": "cifar-resnet18", "BYOL R-50": "cifar-resnet50", "BYOL MBv2": "cifar-mobilenet"}
GUIDELINES = (1, 3, 7, 9, 15, 18, 19, 22, 23, 24, 27, 28)
"""Cases of app-ablation: base and distillation loss, without and with a momentum teacher and a head of its own."""
RIVALS = {1: "SimCLR, each width alone", 7: "US+SimCLR", 9: "US3L (the paper's)"}
"""Rows of main-cifar100 that every-width compares with."""
PLUS = Case("us3l-plus", "cifar-resnet18", "us3l-plus")
TAKEN_AWAY: dict[str, dict[str, Any]] = {
    "imitation by MSE instead of InfoNCE": {"distill_loss": "mse"},
    "one update per batch instead of one per width": {"update": "per-batch"},
    "the full network's crops instead of gentle ones": {"sub_crop": None},
    "no dynamic sampling": {"max_first": False, "gradual": False},
    "no head of the sub-networks' own": {"head": "none"},
    "no momentum teacher": {"momentum_base": False, "momentum_sub": False},
    "a teacher's memory as short as the paper's": {"teacher_memory": memory(0.99, 38_800)},
    "no group regularisation": {"alpha": 0.0},
}
"""What US3L-plus is with each of its ingredients taken away."""
BACKBONES = (
    ("ViT-Tiny: MoCo v3, each width alone", "main-vit-cifar10", 1, None),
    ("ViT-Tiny: US3L on MoCo v3 (the paper's)", "main-vit-cifar10", 3, None),
    ("ViT-Tiny: US3L-plus", "main-vit-cifar10", 3, "us3l-plus"),
    ("MobileNetV2: BYOL, each width alone", "main-cifar100", 18, None),
    ("MobileNetV2: US3L (the paper's)", "main-cifar100", 23, None),
    ("MobileNetV2: US3L-plus", "main-cifar100", 23, "us3l-plus"),
)
"""Rows of the paper's tables, here all on CIFAR-100, and the method that takes the place of the paper's, if any."""
ELASTIC: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("ResNet-18, plain widths only", "cifar-resnet18", {}),
    ("ResNet-18, also a width for each stage", "cifar-resnet18", {"mixed": 0.5}),
    ("ResNet-18, also fewer blocks", "cifar-resnet18", {"mixed": 0.5, "mixed_depth": 0.5}),
    ("ViT-Tiny, plain widths only", "cifar-vit-tiny", {}),
    ("ViT-Tiny, also fewer blocks", "cifar-vit-tiny", {"mixed": 0.5, "mixed_depth": 0.5}),
)
"""US3L-plus with half of its random sub-networks drawn as `us3l search` finds them: what plain widths lose by it."""
UNNAMED = ("Once Training", "Training Cost", "Expected forward number", "Case", "Avg.", "1.0x diff", "Model Type")
OURS = {
    "every-width": "networks trained alone, US+SimCLR, the paper's US3L and US3L-plus",
    "plus-ablation": "US3L-plus with each of its ingredients taken away",
    "backbones": "ViT-Tiny and MobileNetV2: networks trained alone, the paper's US3L and US3L-plus",
    "elastic": "US3L-plus at plain widths only, with widths for each stage, and with fewer blocks",
    "guidelines": "the consistency of guidance over training, for the combinations of losses and teacher",
    "steps": "US3L with one update per batch (the paper's Algorithm 1) or one per width (the authors' code)",
}
REPRODUCIBLE = (
    *TABLES,
    "ablation",
    "app-arbitrary-width",
    "classification",
    "classification-r18",
    "coco",
    *OURS,
)


@dataclass(frozen=True)
class PaperCell:
    """One figure of a table, and where ours comes from."""

    row: int
    label: str
    series: str
    """What is one line in a picture over the widths: the row, or a method where each row is one width."""
    column: str
    width: float
    case: Case
    alone: bool
    """Each width is a network of its own."""
    trained_on: str
    tested_on: str
    paper: float | None = None
    collapsed: bool = False
    """In the paper."""
    metric: str = "linear"
    """Or the name of a detector's score."""
    split: EvaluationSplit = "test"
    """Which of its images; runs that are tested on validation images do not learn from them."""
    seeds: tuple[int, ...] | None = None
    """Of its runs; None for 0, 1, ... as far as they are done."""

    @property
    def run_width(self) -> float:
        """The width in its run: an individual network is the whole of its own."""
        return 1.0 if self.alone else self.width


@dataclass(frozen=True)
class Pretraining:
    """A pre-training."""

    data: str
    recipe: Recipe
    teacher: Pretraining | None = None

    @cached_property
    def name(self) -> str:
        """The same for the same settings, whichever table asks for them."""
        network, seed = self.recipe.network, self.recipe.seed
        settings = [self.data, distinct(asdict(self.recipe), asdict(Recipe())), self.teacher and self.teacher.name]
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
        width = "" if network.individual is None else f"-{network.individual:g}x"
        return f"{network.backbone}{width}-{self.recipe.objective.base_loss}-seed{seed}-{digest}"

    @property
    def effort(self) -> float:
        """The cost, as epochs of the full network alone."""
        recipe, steps = self.recipe, 100
        alone = recipe.network.individual
        passes = [
            [alone] if alone else sample_widths(recipe.objective, recipe.network.min_width, step, steps, recipe.seed)
            for step in range(steps)
        ]
        return recipe.epochs * sum(float(width) ** 2 for widths in passes for width in widths) / steps


FORMER = {(name, value): former for (name, former), value in RENAMED.items()}


def distinct(values: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """Return what is not at its default, so that settings which are new to a later version leave names as they were.

    Values that were renamed since have their former names, for the same reason.
    """
    changed = {}
    for key, value in values.items():
        if isinstance(value, dict) and isinstance(defaults.get(key), dict):
            value = distinct(value, defaults[key]) or defaults[key]
        if value != defaults.get(key):
            changed[key] = FORMER.get((key, value), value) if isinstance(value, str) else value
    return changed


def cells_of(name: str, scale: Scale) -> list[PaperCell]:
    """Return all figures of a table at a scale, row by row."""
    if name not in REPRODUCIBLE:
        raise UserError(f"no table {name!r} can be reproduced: choose from {', '.join(REPRODUCIBLE)}")
    if name in ("classification", "classification-r18", "coco"):
        return list(transfers(name, scale))
    data = scale.data({"main-vit-cifar10": "cifar10", "main-imagenet": "imagenet"}.get(name, "cifar100"))
    cells: list[PaperCell] = []
    for number, (chosen, row) in enumerate(rows_of(name), start=1):
        alone = row.get("Once Training") == "no" or row.get("Method") == "Individual"
        accuracies = by_width(row)
        widths = accuracies if scale.widths is None or name == "app-arbitrary-width" else scale.widths
        for width in widths:
            accuracy = accuracies.get(width, "")
            what = (number, label_of(row), label_of(row), f"{width:g}x", width)
            cells.append(PaperCell(*what, chosen, alone, data, data, number_in(accuracy), accuracy == "-"))
    return cells


def rows_of(name: str) -> list[tuple[Case, Row]]:
    """Return the cases of a table's rows, and the rows."""
    losses = list(zip(cases("app-ablation"), table("app-ablation"), strict=True))
    if name == "guidelines":
        return [losses[number - 1] for number in GUIDELINES]
    if name == "every-width":
        unnamed = {"Backbone": "-", "Pretrained Teacher": "-"}
        rivals = [
            (case(f"main-cifar100/{number}"), table("main-cifar100")[number - 1] | unnamed | {"Method": words})
            for number, words in RIVALS.items()
        ]
        return [*rivals, (PLUS, blank("US3L-plus"))]
    if name == "plus-ablation":
        less = {words: replace(PLUS, objective=changes) for words, changes in TAKEN_AWAY.items()}
        return [(PLUS, blank("US3L-plus")), *((chosen, blank(words)) for words, chosen in less.items())]
    if name == "backbones":
        return [other_backbone(*row) for row in BACKBONES]
    if name == "elastic":
        return [(Case(words, recipe, "us3l-plus", changes), blank(words)) for words, recipe, changes in ELASTIC]
    if name == "steps":
        ours = case("main-cifar100/9")
        each = replace(ours, objective=ours.objective | {"update": "per-width"})
        return [
            (ours, blank("one update per batch (Algorithm 1)")),
            (each, blank("one update per width (the authors' code)")),
        ]
    if name == "ablation":
        return [(losses[number - 1][0], row) for number, row in zip(ABLATION, table(name), strict=True)]
    if name == "app-arbitrary-width":
        longer = {"R-18": "main-cifar100/10", "R-50": "main-cifar100/17"}
        return [(case(longer[row["Backbone"]]), row) for row in table(name)]
    return list(zip(cases(name), table(name), strict=True))


def other_backbone(words: str, name: str, number: int, method: str | None) -> tuple[Case, Row]:
    """Return the case of a row of `BACKBONES`, and a row with its name."""
    chosen = case(f"{name}/{number}")
    once = table(name)[number - 1]["Once Training"]
    return replace(chosen, method=method or chosen.method), blank(words) | {"Once Training": once}


def blank(method: str) -> Row:
    """Return a row that is not in the paper, with the columns of its main table."""
    return {"Method": method} | dict.fromkeys(filter(width_of, table("main-cifar100")[0]), "")


def transfers(name: str, scale: Scale) -> Iterator[PaperCell]:
    """Yield the figures of networks pre-trained on ImageNet on other data: a row is a width and a method."""
    for number, row in enumerate(table(name), start=1):
        net, width = row.get("Net", "R-50"), width_of(row["Width"])
        assert width
        chosen = case(f"main-imagenet/{IMAGENET[net, row['Method']]}")
        for column, value in row.items():
            if column in TRANSFER or column.startswith("AP"):
                data, metric = (TRANSFER[column], "linear") if column in TRANSFER else ("coco", column)
                what = (number, f"{net} {row['Width']} {row['Method']}", f"{net} {row['Method']}", column, width)
                alone = row["Method"] == "BYOL"
                yield PaperCell(
                    *what, chosen, alone, scale.data("imagenet"), data, number_in(value), value == "-", metric
                )


@cache  # a plan asks for the run of every figure many times
def job_of(cell: PaperCell, scale: Scale, seed: int) -> Pretraining:
    """Return the run that a figure comes from."""
    recipe = replace(cell.case.apply(scale.recipe(cell.case.recipe)), seed=seed)
    recipe = replace(recipe, network=replace(recipe.network, individual=cell.width if cell.alone else None))
    recipe = replace(recipe, validation=recipe.validation or cell.split == "validation")
    teacher = None
    if name := cell.case.teacher:
        trained_first = Case(name, TEACHERS[name], "byol")
        teacher = job_of(replace(cell, case=trained_first, alone=True, width=1.0), scale, seed)
    return Pretraining(cell.trained_on, recipe, teacher)


def jobs_of(cells: Sequence[PaperCell], scale: Scale, seeds: int) -> list[Pretraining]:
    """Return each run once, a seed of all rows before the next seed, and teachers before those that they teach."""
    jobs: dict[str, Pretraining] = {}
    for seed in range(seeds):
        for cell in cells:
            job = job_of(cell, scale, seed)
            if job.teacher:
                jobs.setdefault(job.teacher.name, job.teacher)
            jobs.setdefault(job.name, job)
    return list(jobs.values())


def chosen_rows(cells: Sequence[PaperCell], rows: Sequence[int]) -> list[PaperCell]:
    """Return the cells of some rows, by number from 1; all if none is named."""
    numbers = {cell.row for cell in cells}
    for row in rows:
        if row not in numbers:
            raise UserError(f"there is no row {row}: the table has rows 1 to {max(numbers)}")
    return [cell for cell in cells if not rows or cell.row in rows]


def width_of(column: str) -> float | None:
    """Return the width in the header of a column of accuracies; None if it is another column's.

    >>> width_of("0.25x"), width_of("Backbone")
    (0.25, None)
    """
    try:
        return float(column[:-1]) if column.endswith("x") else None
    except ValueError:
        return None


def by_width(row: Row) -> dict[float, str]:
    """Return the accuracies of a row as they stand in the table."""
    return {width: value for column, value in row.items() if (width := width_of(column))}


def number_in(text: str) -> float | None:
    """Return the number that a cell of a table shows; None if it is empty or shows a collapse."""
    try:
        return float(text)
    except ValueError:
        return None


def label_of(row: Row) -> str:
    """Return what a row is, from the columns that are not results."""
    if "Distill Loss" in row:
        return losses_label(row)
    words = []
    for column, value in row.items():
        if width_of(column) or column in UNNAMED or value in ("no", "-"):
            continue
        number = value.strip("-%").replace(".", "").isdigit()
        words.append(column if value == "yes" else f"{column} {value}" if number else value)
    return ", ".join(words) or "none"


def losses_label(row: Row) -> str:
    """Return base and distillation loss, head, and who follows a momentum teacher, in the tables of losses."""
    base, distillation, head, *teachers = (row[column] for column in row if not width_of(column) and column != "Case")
    label = f"{base} + {'own loss' if distillation == 'no' else distillation}"
    if head != "no":
        label += f", {head[5:-1].lower()} head" if "(" in head else ", head"
    if "yes" in teachers:
        label += ", momentum" if teachers == ["yes", "yes"] else ", momentum for subs"
    return label
