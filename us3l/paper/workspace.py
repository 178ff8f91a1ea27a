"""The folder in which a table is reproduced: which runs are there, and what they found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, stdev

from us3l.devices import AskedPrecision
from us3l.errors import UserError
from us3l.paper.reproduce import PaperCell, Pretraining, job_of
from us3l.paper.scales import Scale
from us3l.run import Run
from us3l.run.detections import find_detection
from us3l.run.evaluations import EvaluationRecord, find_evaluation
from us3l.run.records import Gauges, read_records
from us3l.training.monitor import COLLAPSED
from us3l.training.run import Machine, RunConfig, config_of

DETECTION = {"AP": "ap", "AP_50": "ap50", "AP_75": "ap75"}


@dataclass(frozen=True)
class Found:
    """One figure of a table, over the seeds that are done."""

    entry: PaperCell
    values: tuple[float, ...] = ()
    collapses: int = 0
    knn: tuple[float, ...] = ()
    """Accuracies of nearest neighbours, from the evaluations that the values come from, if these are linear probes."""
    macs: int | None = None
    """What the network costs per image, if it was probed."""

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
        if replace(config_of(run).recipe, teacher=None).settled() != job.recipe.settled():
            raise UserError(f"{run.folder} was made with other settings: move it away, or choose another `out`")

    def value(self, entry: PaperCell, job: Pretraining) -> float | None:
        """What a run found for a figure of a table; None if it is still to be measured."""
        if entry.metric == "linear":
            return self.accuracy(entry, job, "linear")
        detected = find_detection(self.run(job), self.source(entry.tested_on), entry.run_width)
        if detected is None:
            return None
        score, _, kind = entry.metric.partition("^")
        scores = detected.boxes if kind == "bb" else detected.masks
        return getattr(scores.overall, DETECTION[score]) if scores else None

    def accuracy(self, entry: PaperCell, job: Pretraining, metric: str) -> float | None:
        """Of one kind, as evaluated; None if it was not."""
        record = self.evaluation(entry, job)
        return record.percent(metric).get(entry.run_width) if record else None

    def evaluation(self, entry: PaperCell, job: Pretraining) -> EvaluationRecord | None:
        """The probes of a run on the data of a figure."""
        return find_evaluation(self.run(job), self.source(entry.tested_on), self.scale.protocol)

    def missing(self, job: Pretraining, entries: Sequence[PaperCell]) -> dict[tuple[str, bool], list[float]]:
        """The widths that a run is still to be evaluated at, by data set and by whether with a detector."""
        lacking: dict[tuple[str, bool], list[float]] = {}
        for entry in entries:
            if job_of(entry, self.scale, job.recipe.seed).name == job.name and self.value(entry, job) is None:
                widths = lacking.setdefault((entry.tested_on, entry.metric != "linear"), [])
                if entry.run_width not in widths:
                    widths.append(entry.run_width)
        return lacking

    def done(self, job: Pretraining, entries: Sequence[PaperCell]) -> bool:
        return self.run(job).finished and not self.missing(job, entries)

    def seeds(self, entry: PaperCell) -> list[Pretraining]:
        """The finished runs for a figure, of seed 0, 1, ..."""
        jobs: list[Pretraining] = []
        while self.run(job := job_of(entry, self.scale, len(jobs))).finished:
            jobs.append(job)
        return jobs

    def collect(self, entries: Sequence[PaperCell]) -> list[Found]:
        """All that is there, whoever made it."""
        return [self.found(entry) for entry in entries]

    def found(self, entry: PaperCell) -> Found:
        values, knn, collapses, macs = [], [], 0, None
        for job in self.seeds(entry):
            value = self.value(entry, job)
            if value is not None:
                values.append(value)
                collapses += collapsed(self.gauges(job), entry.run_width)
                if entry.metric == "linear" and (record := self.evaluation(entry, job)):
                    macs = next(row.macs for row in record.widths if row.width == entry.run_width)
                    knn += [near] if (near := record.percent("knn").get(entry.run_width)) is not None else []
        return Found(entry, tuple(values), collapses, tuple(knn), macs)

    def gauges(self, job: Pretraining) -> list[Gauges]:
        """The measurements of the monitor in a run, from the first to the last."""
        return [record for record in read_records(self.run(job)) if isinstance(record, Gauges)]


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
