"""The runs that test the paper's claims and ours: tuning on validation images, then the final runs.

docs/lab/protocol.md says what is done and why; it was written before the runs. All is at the small scale.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean
from typing import Any

from us3l.objective.spec import memory
from us3l.paper.cases import Case, case
from us3l.paper.cells import BACKBONES, TAKEN_AWAY, PaperCell, Pretraining, job_of, other_backbone
from us3l.paper.workspace import Workspace
from us3l.run.identity import EvaluationSplit
from us3l.training.recipes import times

Settings = dict[str, Any]
CLAIMS = "claims"
DATA = "cifar100"
RESNET = "cifar-resnet18"
EPOCH_STEPS = 175  # of 22,500 images in batches of 128
SHORT, MIDDLE, LONG, LONGEST = 2145, 4290, 8580, 17160
SEEDS = (1, 2, 3)  # of the final runs; tuning has seed 0
WIDTHS = (1.0, 0.75, 0.5, 0.25)
BETWEEN = (0.95, 0.9, 0.85, 0.8, 0.7, 0.65, 0.6, 0.55, 0.45, 0.4, 0.35, 0.3, 0.275)
LR, WEIGHT_DECAY = 0.2, 1e-4  # what all InfoNCE methods have at this scale
LR_TRIALS, WEIGHT_DECAY_TRIALS = (0.4, 0.1), (5e-4, 2e-5)
SHORT_MEMORY = memory(0.99, 38_800)  # of the teacher, in the paper


@dataclass(frozen=True)
class Contender:
    """A method whose settings are tuned."""

    label: str
    method: str
    judged_at: tuple[float, ...] = (1.0, 0.25)
    alone: bool = False
    """It is one network, of the width that it is judged at."""
    memories: tuple[float, ...] = ()
    """Of its teacher, to try; methods without a teacher try two more learning rates instead."""

    def last_changes(self, best: Settings) -> list[Settings]:
        """Return what the last two trials change, so that every method has seven."""
        if self.memories:
            return [{"teacher_memory": value} for value in self.memories]
        return [{"lr": times(best.get("lr", LR), factor)} for factor in (math.sqrt(2), 1 / math.sqrt(2))]


PLUS = Contender("US3L-plus", "us3l-plus", memories=(SHORT_MEMORY, 0.05))
US3L = Contender("US3L (the paper's)", "us3l", memories=(0.012, 0.05))
ALONE_1X = Contender("SimCLR, 1x alone", "simclr", (1.0,), alone=True)
ALONE_QUARTER = Contender("SimCLR, 0.25x alone", "simclr", (0.25,), alone=True)
US_SIMCLR = Contender("US+SimCLR", "us-simclr")
CONTENDERS = (ALONE_QUARTER, ALONE_1X, PLUS, US3L, US_SIMCLR)  # cheap ones first


@dataclass(frozen=True)
class Trial:
    """One setting of a contender, trained once and judged on validation images."""

    contender: Contender
    number: int
    settings: Settings

    @cached_property
    def cells(self) -> list[PaperCell]:
        who = self.contender
        label = f"{who.label}, trial {self.number}"
        tried = Case(label, RESNET, who.method, settings=length(SHORT) | self.settings)
        return [
            replace(cell_of(label, tried, width, who.alone), split="validation", seeds=(0,)) for width in who.judged_at
        ]

    def score(self, place: Workspace) -> float | None:
        """Return the mean accuracy over the widths that it is judged at; None if it is not measured yet."""
        figures = [place.figure(cell, job_of(cell, place.scale, 0)) for cell in self.cells]
        return None if None in figures else fmean(figure.value for figure in figures if figure)


@dataclass(frozen=True)
class Tuning:
    """The trials of a contender, as far as they can be known."""

    trials: list[Trial]
    best: Settings | None
    """None until all trials are measured."""


def tune(contender: Contender, place: Workspace) -> Tuning:
    """Return the seven trials of the protocol; each of its three rounds starts from the best so far."""
    trials = [Trial(contender, 1, {})]
    for number in range(3):
        if number and any(trial.score(place) is None for trial in trials):
            return Tuning(trials, None)
        best = best_of(trials, place) if number else {}
        changes: list[Settings] = (
            [{"lr": value} for value in LR_TRIALS],
            [{"weight_decay": value} for value in WEIGHT_DECAY_TRIALS],
            contender.last_changes(best),
        )[number]
        trials += [Trial(contender, len(trials) + count, best | change) for count, change in enumerate(changes, 1)]
    done = all(trial.score(place) is not None for trial in trials)
    return Tuning(trials, best_of(trials, place) if done else None)


def best_of(trials: Sequence[Trial], place: Workspace) -> Settings:
    """Return the settings of the trial with the highest score; of equal ones the earliest."""
    return max(trials, key=lambda trial: trial.score(place) or 0.0).settings


def length(steps: int) -> Settings:
    """Return the settings of a run of this many steps on the training images of the protocol."""
    return {"max_steps": steps, "epochs": math.ceil(steps / EPOCH_STEPS), "validation": True}


def cell_of(label: str, chosen: Case, width: float, alone: bool) -> PaperCell:
    return PaperCell(0, label, label, f"{width:g}x", width, chosen, alone, DATA, DATA, seeds=SEEDS)


@dataclass(frozen=True)
class ClaimRow:
    """A row of the final tables: one method at one length."""

    label: str
    steps: int
    case: Case
    alone: bool = False
    tuned: tuple[Contender, ...] = ()
    """Whose best settings it has: of the full width and its neighbour first, of the narrow ones last."""
    widths: tuple[float, ...] = WIDTHS
    split: EvaluationSplit = "test"

    @property
    def name(self) -> str:
        images = "" if self.split == "test" else f", {self.split} images"
        return f"{self.label}, {self.steps:,} steps{images}"

    def cells(self, best: dict[Contender, Settings]) -> list[PaperCell]:
        """Return its figures, with the best settings of the method that it is tuned by."""
        cells = []
        for width in self.widths:
            who = self.tuned[0 if width > 0.5 else -1] if self.tuned else None
            settings = length(self.steps) | (best[who] if who else {}) | self.case.settings
            cell = cell_of(self.name, replace(self.case, settings=settings), width, self.alone)
            cells.append(replace(cell, split=self.split))
        return cells


def method_row(contender: Contender, steps: int, widths: tuple[float, ...] = WIDTHS, **settings: Any) -> ClaimRow:
    """Return the row of a tuned method that trains all widths at once."""
    chosen = Case(contender.label, RESNET, contender.method, settings=settings)
    return ClaimRow(contender.label, steps, chosen, tuned=(contender,), widths=widths)


def alone_row(steps: int, widths: tuple[float, ...] = WIDTHS, **settings: Any) -> ClaimRow:
    """Return the row of SimCLR, tuned, a network for each width."""
    chosen = Case("SimCLR alone", RESNET, "simclr", settings=settings)
    return ClaimRow("SimCLR, each width alone", steps, chosen, True, (ALONE_1X, ALONE_QUARTER), widths)


def four_methods(steps: int) -> list[ClaimRow]:
    """Return the rows of the main table."""
    together = [method_row(contender, steps) for contender in (PLUS, US3L, US_SIMCLR)]
    return [*together[:2], alone_row(steps), together[2]]


def paper_row(name: str, label: str, steps: int, tuned: tuple[Contender, ...] = ()) -> ClaimRow:
    """Return a row of one of the paper's tables."""
    return ClaimRow(label, steps, case(name), tuned=tuned)


SAMPLING = {
    1: "4 widths per batch (4T)",
    2: "3 widths per batch (3T)",
    3: "3 widths, gradually reduced",
    4: "3 widths, the full one alone first (2.5T)",
    5: "3 widths, both (2.5T)",
}
GUIDELINE_CASES = (1, 3, 7, 19, 22, 23, 28)
SIMSIAM = {5: "SimSiam in S-Net", 6: "SimSiam in S-Net with distillation"}
GROUPS: Settings = {"alpha": 0.05}


def sampling_rows() -> list[ClaimRow]:
    return [paper_row(f"app-ablation-sample/{case}", label, LONG, (US3L,)) for case, label in SAMPLING.items()]


def guideline_rows() -> list[ClaimRow]:
    return [paper_row(f"app-ablation/{number}", f"case {number}", MIDDLE) for number in GUIDELINE_CASES]


def simsiam_rows() -> list[ClaimRow]:
    alone = ClaimRow("SimSiam, each width alone", MIDDLE, case("motivation/4"), True)
    return [alone, *(paper_row(f"motivation/{number}", label, MIDDLE) for number, label in SIMSIAM.items())]


def group_rows() -> list[ClaimRow]:
    alone = alone_row(LONG, (1.0,))
    grouped = replace(alone.case, objective=GROUPS)
    ours = paper_row("app-ablation-reg/3", "3 widths, group regularisation", LONG, (US3L,))
    return [replace(alone, label="SimCLR, 1x alone, group regularisation", case=grouped), ours]


def between_rows() -> list[ClaimRow]:
    rows = [method_row(contender, steps, BETWEEN) for contender in (US3L, PLUS) for steps in (SHORT, LONG)]
    return [replace(row, label=f"{row.label}, widths between") for row in rows]


def ingredient_rows() -> list[ClaimRow]:
    plus = method_row(PLUS, SHORT)
    return [
        replace(plus, label=words, case=replace(plus.case, settings=changes)) for words, changes in TAKEN_AWAY.items()
    ]


def byol_rows() -> list[ClaimRow]:
    return [ClaimRow("BYOL, each width alone", steps, case("main-cifar100/3"), True) for steps in (SHORT, LONG)]


def backbone_rows() -> list[ClaimRow]:
    chosen = [other_backbone(*backbone) for backbone in BACKBONES]
    return [ClaimRow(row["Method"], SHORT, case, row["Once Training"] == "no") for case, row in chosen]


def large_image_rows() -> list[ClaimRow]:
    rows = [alone_row(SHORT, (1.0, 0.25), size=32), *(method_row(who, SHORT, size=32) for who in (US3L, PLUS))]
    return [replace(row, label=f"{row.label}, 32 pixels") for row in rows]


@dataclass(frozen=True)
class Stage:
    """Rows that are run one after the other, a seed of all before the next."""

    title: str
    rows: list[ClaimRow]
    seeds: tuple[int, ...] = field(default=SEEDS[:1])


def stages() -> list[Stage]:
    """Return all final runs, in the order of their worth."""
    longest = [method_row(PLUS, LONGEST), method_row(US3L, LONGEST), alone_row(LONGEST, (1.0, 0.25))]
    return [
        Stage("the four methods", four_methods(SHORT), SEEDS),
        Stage(
            "the same on validation images", [replace(row, split="validation") for row in four_methods(SHORT)], SEEDS
        ),
        Stage("the four methods", four_methods(LONG)),
        Stage("dynamic sampling", sampling_rows()),
        Stage("the guidelines", guideline_rows()),
        Stage("plain SSL in slimmable networks", simsiam_rows()),
        Stage("arbitrary widths", between_rows()),
        Stage("group regularisation", group_rows()),
        Stage("the four methods", four_methods(LONG), SEEDS[1:]),
        Stage("the longest runs", longest),
        Stage("ingredients of US3L-plus", ingredient_rows(), SEEDS),
        Stage("BYOL alone", byol_rows()),
        Stage("other backbones", backbone_rows()),
        Stage("32 pixels", large_image_rows()),
    ]


@dataclass(frozen=True)
class ClaimQueue:
    """What can be run by now, in the order of its worth."""

    tunings: dict[Contender, Tuning]
    place: Workspace

    @property
    def best(self) -> dict[Contender, Settings] | None:
        """The best settings of all contenders; None until all trials are measured."""
        best = {contender: tuning.best for contender, tuning in self.tunings.items()}
        return None if None in best.values() else {who: chosen for who, chosen in best.items() if chosen is not None}

    def ordered(self) -> Iterator[tuple[PaperCell, int]]:
        """Yield every figure and its seed. Final runs are there when tuning is done."""
        trials = [trial for tuning in self.tunings.values() for trial in tuning.trials]
        for trial in sorted(trials, key=lambda trial: trial.number):
            yield from ((cell, 0) for cell in trial.cells)
        if self.best is None:
            return
        for stage in stages():
            for seed in stage.seeds:
                for row in stage.rows:
                    yield from ((cell, seed) for cell in row.cells(self.best))

    @property
    def jobs(self) -> list[Pretraining]:
        """Every run once."""
        jobs = (job_of(cell, self.place.scale, seed) for cell, seed in self.ordered())
        return list({job.name: job for job in jobs}.values())

    @property
    def cells(self) -> list[PaperCell]:
        """Every figure once; those of a label are a row."""
        cells = list(dict.fromkeys(cell for cell, _ in self.ordered()))
        numbers = {label: number for number, label in enumerate(dict.fromkeys(cell.label for cell in cells), start=1)}
        return [replace(cell, row=numbers[cell.label]) for cell in cells]


def queue_of(place: Workspace) -> ClaimQueue:
    """Return what can be run by now for the claims."""
    return ClaimQueue({contender: tune(contender, place) for contender in CONTENDERS}, place)
