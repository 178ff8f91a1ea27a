"""The folder in which a table is reproduced: which runs are there, and what they found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

from us3l.paper.reproduce import PaperCell, Pretraining, job_of
from us3l.paper.run_figures import FigureKey, Figures, RunFigure
from us3l.paper.scales import Scale
from us3l.run import Run
from us3l.run.detections import find_detection
from us3l.run.evaluations import find_evaluation
from us3l.run.identity import EvaluationSplit
from us3l.run.training_log import Gauges, read_records
from us3l.system.devices import AskedPrecision
from us3l.system.errors import UserError
from us3l.training.monitor import COLLAPSED
from us3l.training.run_config import Machine, RunConfig, config_of
from us3l.width import Width

DETECTION = {"AP": "ap", "AP_50": "ap50", "AP_75": "ap75"}


class EvaluatedOn(NamedTuple):
    """What a run is tested on."""

    data: str
    split: EvaluationSplit = "test"
    detection: bool = False
    """With a detector."""


@dataclass(frozen=True)
class Found:
    """One figure of a table, over the seeds that are done."""

    entry: PaperCell
    figures: Mapping[str, RunFigure] = field(default_factory=dict)
    """By the name of the run, one for each seed."""

    @property
    def values(self) -> tuple[float, ...]:
        return tuple(figure.value for figure in self.figures.values())

    @property
    def knn(self) -> tuple[float, ...]:
        """Accuracies of nearest neighbours, from the same evaluations, if the values are those of linear probes."""
        return tuple(figure.knn for figure in self.figures.values() if figure.knn is not None)

    @property
    def macs(self) -> int | None:
        """What the network costs per image, if it was probed."""
        return next((figure.macs for figure in self.figures.values()), None)

    @property
    def collapses(self) -> int:
        return sum(figure.collapsed for figure in self.figures.values())

    @property
    def by_key(self) -> Figures:
        return {key_of(self.entry, run): figure for run, figure in self.figures.items()}

    @property
    def collapsed(self) -> bool:
        """With most of the seeds."""
        return 2 * self.collapses > len(self.values)

    @property
    def mean(self) -> float | None:
        return fmean(self.values) if self.values else None

    @property
    def deviation(self) -> float | None:
        return stdev(self.values) if len(self.values) > 1 else None

    @property
    def difference(self) -> float | None:
        return None if self.mean is None or self.entry.paper is None else self.mean - self.entry.paper


@dataclass(frozen=True)
class Workspace:
    """Runs in sub-folders that are named by their settings, so that tables share them."""

    folder: Path
    scale: Scale
    sources: Mapping[str, str] = field(default_factory=dict)
    """Where data sets lie, if not under their own names."""
    precision: AskedPrecision = "auto"
    """Of runs that are yet to begin; the others keep theirs."""
    known: Figures = field(default_factory=dict)
    """What runs found that are not here; of those that are here, their own results count."""

    def source(self, data: str) -> str:
        return self.sources.get(data, data)

    def run(self, job: Pretraining) -> Run:
        return Run(self.folder / job.name)

    def config(self, job: Pretraining) -> RunConfig:
        teacher = str(self.run(job.teacher).folder) if job.teacher else None
        return RunConfig(self.source(job.data), replace(job.recipe, teacher=teacher), Machine(precision=self.precision))

    def check(self, job: Pretraining) -> None:
        """That a run which is there has the settings its name stands for."""
        run = self.run(job)
        if not run.config_file.exists():
            return
        if replace(config_of(run).recipe, teacher=None).resolved() != job.recipe.resolved():
            raise UserError(f"{run.folder} was made with other settings: move it away, or choose another `out`")

    def figure(self, entry: PaperCell, job: Pretraining) -> RunFigure | None:
        """What a run found for a figure of a table, here or elsewhere; None if it is still to be measured."""
        if self.run(job).finished and (found := self.measured(entry, job)):
            return found
        return self.known.get(key_of(entry, job.name))

    def measured(self, entry: PaperCell, job: Pretraining) -> RunFigure | None:
        """The same, of a run that is here."""
        run, source, width = self.run(job), self.source(entry.tested_on), entry.run_width
        precision, gone = config_of(run).machine.precision, collapsed(self.gauges(job.name), width)
        if entry.metric == "linear":
            record = find_evaluation(run, source, self.scale.protocol, entry.split)
            for row in record.widths if record else ():
                if row.width == width and "linear" in row.scores:
                    linear, knn = row.scores["linear"].top1, row.percent("knn")
                    return RunFigure(linear, gone, knn, row.cost.macs, precision)
        elif detected := find_detection(run, source, Width(width)):
            score, _, kind = entry.metric.partition("^")
            if scores := detected.boxes if kind == "bb" else detected.masks:
                return RunFigure(getattr(scores.overall, DETECTION[score]), gone, precision=precision)
        return None

    def missing(self, job: Pretraining, entries: Sequence[PaperCell]) -> dict[EvaluatedOn, list[float]]:
        """The widths that a run is still to be evaluated at, by what it is to be tested on."""
        lacking: dict[EvaluatedOn, list[float]] = {}
        for entry in self.cells(job, entries):
            if self.figure(entry, job) is None:
                widths = lacking.setdefault(EvaluatedOn(entry.tested_on, entry.split, entry.metric != "linear"), [])
                if entry.run_width not in widths:
                    widths.append(entry.run_width)
        return lacking

    def cells(self, job: Pretraining, entries: Sequence[PaperCell]) -> list[PaperCell]:
        """The figures that a run is for; none if all it does is teach others."""
        seed = job.recipe.seed
        asked = [entry for entry in entries if entry.seeds is None or seed in entry.seeds]
        return [entry for entry in asked if job_of(entry, self.scale, seed).name == job.name]

    def done(self, job: Pretraining, entries: Sequence[PaperCell]) -> bool:
        found = self.run(job).finished or bool(self.cells(job, entries))
        return found and not self.missing(job, entries)

    def seeds(self, entry: PaperCell) -> dict[str, RunFigure]:
        """What the runs of its seeds found for a figure, by their names, up to the first that is not done."""
        found: dict[str, RunFigure] = {}
        for seed in count() if entry.seeds is None else entry.seeds:
            job = job_of(entry, self.scale, seed)
            if (figure := self.figure(entry, job)) is None:
                break
            found[job.name] = figure
        return found

    def collect(self, entries: Sequence[PaperCell]) -> list[Found]:
        """All that is there, whoever made it."""
        return [Found(entry, self.seeds(entry)) for entry in entries]

    def gauges(self, run: str) -> list[Gauges]:
        """The measurements of the monitor in a run, from the first to the last; none if the run is not here."""
        return [record for record in read_records(Run(self.folder / run)) if isinstance(record, Gauges)]


def key_of(entry: PaperCell, run: str) -> FigureKey:
    """What a run finds for a figure of a table, in the file of figures."""
    data = entry.tested_on if entry.split == "test" else f"{entry.tested_on} {entry.split}"
    return FigureKey(run, data, entry.metric, entry.run_width)


def collapsed(events: Sequence[Gauges], width: float) -> bool:
    """By the last measurement, at the monitored width nearest to this one."""
    if not events:
        return False
    gauges = {float(name): values for name, values in events[-1].gauges.items()}
    nearest = min(gauges, key=lambda known: abs(known - width))
    return bool(gauges[nearest]["spread"] < COLLAPSED)


def disagreements(found: Sequence[Found]) -> list[tuple[str, str, float, float]]:
    """Pairs of rows whose order by the mean over common columns is not the paper's: ours above, ours below, by how much
    here and in the paper. The paper's collapsed rows are its lowest."""
    means: dict[int, tuple[str, float, float]] = {}
    for row in dict.fromkeys(one.entry.row for one in found):
        both = [
            (one.mean, 0.0 if one.entry.collapsed else one.entry.paper)
            for one in found
            if one.entry.row == row and one.mean is not None and (one.entry.paper is not None or one.entry.collapsed)
        ]
        if both:
            label = next(one.entry.label for one in found if one.entry.row == row)
            means[row] = (label, fmean(ours for ours, _ in both), fmean(paper or 0.0 for _, paper in both))
    pairs = []
    for first in means.values():
        for second in means.values():
            ours, paper = first[1] - second[1], first[2] - second[2]
            if ours > 0 > paper:
                pairs.append((first[0], second[0], ours, paper))
    return pairs
