"""What runs found for the figures of a table: in the folder where they are made, or in a file from other machines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from us3l.paper.cells import PaperCell, Pretraining, job_of
from us3l.paper.scales import Scale
from us3l.run import Run
from us3l.run.detections import find_detection
from us3l.run.evaluations import find_evaluation
from us3l.run.identity import EvaluationSplit
from us3l.run.records import Number, WholeNumber, check_version, convert, said
from us3l.run.training_log import Gauges, read_records
from us3l.system.devices import AskedPrecision
from us3l.system.errors import UserError
from us3l.system.files import locked, read_json, write_json
from us3l.training.monitor import COLLAPSED
from us3l.training.run_config import Machine, RunConfig, config_of
from us3l.width import Width

DETECTION = {"AP": "ap", "AP_50": "ap50", "AP_75": "ap75"}
VERSION = 1
PATIENCE = 60.0  # seconds to wait for another process that adds to the file


@dataclass(frozen=True, order=True)
class FigureKey:
    """What a figure is of."""

    run: str
    """The name, which stands for the settings."""
    data: str
    """What it was tested on, by the name that the tables have for it."""
    metric: str
    width: Number
    """In the run: an individual network is the whole of its own."""


@dataclass(frozen=True)
class RunFigure:
    """One number that a run found."""

    value: Number
    collapsed: bool = False
    knn: Number | None = None
    """Accuracy of nearest neighbours, from the same evaluation."""
    macs: WholeNumber | None = None
    """What the network costs per image."""
    precision: str | None = None
    """Arithmetic of the run, as it was asked for."""


Figures = dict[FigureKey, RunFigure]


class EvaluatedOn(NamedTuple):
    """What a run is tested on."""

    data: str
    split: EvaluationSplit = "test"
    detection: bool = False
    """With a detector."""


@dataclass(frozen=True)
class CellResult:
    """One figure of a table, over the seeds that are done."""

    cell: PaperCell
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
        return {key_of(self.cell, run): figure for run, figure in self.figures.items()}

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
        return None if self.mean is None or self.cell.paper is None else self.mean - self.cell.paper


@dataclass(frozen=True)
class Workspace:
    """Runs in sub-folders that are named by their settings, so that tables share them."""

    folder: Path
    scale: Scale
    sources: Mapping[str, str] = field(default_factory=dict)
    """Where data sets lie, if not under their own names."""
    precision: AskedPrecision = "auto"
    """Of runs that are yet to begin; the others keep theirs."""
    elsewhere: Figures = field(default_factory=dict)
    """What runs found that are not here; of those that are here, their own results count."""

    def source(self, data: str) -> str:
        return self.sources.get(data, data)

    def run(self, job: Pretraining) -> Run:
        return Run(self.folder / job.name)

    def config(self, job: Pretraining) -> RunConfig:
        teacher = str(self.run(job.teacher).folder) if job.teacher else None
        return RunConfig(self.source(job.data), replace(job.recipe, teacher=teacher), Machine(precision=self.precision))

    def check(self, job: Pretraining) -> None:
        """Raise a `UserError` if a run that is there has other settings than those of its name."""
        run = self.run(job)
        if not run.config_file.exists():
            return
        if replace(config_of(run).recipe, teacher=None).resolved() != job.recipe.resolved():
            raise UserError(f"{run.folder} was made with other settings: move it away, or choose another `out`")

    def figure(self, cell: PaperCell, job: Pretraining) -> RunFigure | None:
        """Return what a run found for a figure of a table, here or elsewhere; None if it is still to be measured."""
        if self.run(job).finished and (measured := self.measured(cell, job)):
            return measured
        return self.elsewhere.get(key_of(cell, job.name))

    def measured(self, cell: PaperCell, job: Pretraining) -> RunFigure | None:
        """Return what a run that is here found for a figure of a table; None if it is still to be measured."""
        run, source, width = self.run(job), self.source(cell.tested_on), cell.run_width
        precision = config_of(run).machine.precision
        has_collapsed = collapsed(self.gauges(job.name), width)
        if cell.metric == "linear":
            record = find_evaluation(run, source, self.scale.protocol, cell.split)
            for row in record.widths if record else ():
                if row.width == width and "linear" in row.scores:
                    linear, knn = row.scores["linear"].top1, row.percent("knn")
                    return RunFigure(linear, has_collapsed, knn, row.cost.macs, precision)
        elif detected := find_detection(run, source, Width(width)):
            score, _, kind = cell.metric.partition("^")
            if scores := detected.boxes if kind == "bb" else detected.masks:
                return RunFigure(getattr(scores.overall, DETECTION[score]), has_collapsed, precision=precision)
        return None

    def missing(self, job: Pretraining, cells: Sequence[PaperCell]) -> dict[EvaluatedOn, list[float]]:
        """Return the widths that a run is still to be evaluated at, by what it is to be tested on."""
        lacking: dict[EvaluatedOn, list[float]] = {}
        for cell in self.cells(job, cells):
            if self.figure(cell, job) is None:
                widths = lacking.setdefault(EvaluatedOn(cell.tested_on, cell.split, cell.metric != "linear"), [])
                if cell.run_width not in widths:
                    widths.append(cell.run_width)
        return lacking

    def cells(self, job: Pretraining, cells: Sequence[PaperCell]) -> list[PaperCell]:
        """Return the figures that a run is for; none if all it does is teach others."""
        seed = job.recipe.seed
        asked = [cell for cell in cells if cell.seeds is None or seed in cell.seeds]
        return [cell for cell in asked if job_of(cell, self.scale, seed).name == job.name]

    def done(self, job: Pretraining, cells: Sequence[PaperCell]) -> bool:
        """Return whether all figures that a run is for are known; one that only teaches others must have ended."""
        return (self.run(job).finished or bool(self.cells(job, cells))) and not self.missing(job, cells)

    def seeds(self, cell: PaperCell) -> dict[str, RunFigure]:
        """Return what the runs of its seeds found for a figure, by their names, up to the first that is not done."""
        figures: dict[str, RunFigure] = {}
        for seed in count() if cell.seeds is None else cell.seeds:
            job = job_of(cell, self.scale, seed)
            if (figure := self.figure(cell, job)) is None:
                break
            figures[job.name] = figure
        return figures

    def collect(self, cells: Sequence[PaperCell]) -> list[CellResult]:
        """Return all that is there, whoever made it."""
        return [CellResult(cell, self.seeds(cell)) for cell in cells]

    def gauges(self, run: str) -> list[Gauges]:
        """Return the measurements of the monitor in a run, from the first to the last; none if the run is not here."""
        return [record for record in read_records(Run(self.folder / run)) if isinstance(record, Gauges)]


def key_of(cell: PaperCell, run: str) -> FigureKey:
    """Return the key, in the file of figures, of what a run finds for a figure of a table."""
    data = cell.tested_on if cell.split == "test" else f"{cell.tested_on} {cell.split}"
    return FigureKey(run, data, cell.metric, cell.run_width)


def collapsed(events: Sequence[Gauges], width: float) -> bool:
    """Return whether a run has collapsed: by the last measurement, at the monitored width nearest to this one."""
    if not events:
        return False
    gauges = {float(name): values for name, values in events[-1].gauges.items()}
    nearest = min(gauges, key=lambda monitored: abs(monitored - width))
    return bool(gauges[nearest]["spread"] < COLLAPSED)


def disagreements(results: Sequence[CellResult]) -> list[tuple[str, str, float, float]]:
    """Return the pairs of rows whose order, by the mean over common columns, is not the paper's.

    Each is the row that we have above, the one that we have below, by how much here, and by how much (less than 0) in
    the paper. The paper's collapsed rows are its lowest.
    """
    rows: dict[int, list[CellResult]] = {}
    for result in results:
        if result.mean is not None and (result.cell.paper is not None or result.cell.collapsed):
            rows.setdefault(result.cell.row, []).append(result)
    means = [
        (
            row[0].cell.label,
            fmean(result.mean or 0.0 for result in row),
            fmean(paper_value(result.cell) for result in row),
        )
        for row in rows.values()
    ]
    return [
        (above, below, ours - others, paper - their_paper)
        for above, ours, paper in means
        for below, others, their_paper in means
        if ours > others and paper < their_paper
    ]


def paper_value(cell: PaperCell) -> float:
    return 0.0 if cell.collapsed else cell.paper or 0.0


# The file


@dataclass(frozen=True)
class FiguresFile:
    """What the file of figures declares: a key and its figure in one object each."""

    figures: list[dict[str, Any]]


def read_figures(path: str | Path) -> Figures:
    """Return what `add_figures` wrote, here or elsewhere."""
    path = Path(path)
    content = read_json(path)
    remedy = "leave it out, or take another copy of it"
    check_version(path, content.get("version"), (VERSION,), remedy)
    try:
        lines = convert(content, FiguresFile).figures
        return {convert(line, FigureKey): convert(line, RunFigure) for line in lines}
    except ValueError as error:
        raise UserError(f"{path} is damaged ({said(error)}): {remedy}") from None


def add_figures(path: Path, figures: Figures) -> None:
    """Add figures to a file, in place of those that it has of the same keys; others may add to it at the same time."""
    with locked(path.parent, PATIENCE):
        there = read_figures(path) if path.exists() else {}
        write_json(path, {"version": VERSION, "figures": list(_lines((there | figures).items()))})


def _lines(figures: Iterable[tuple[FigureKey, RunFigure]]) -> Iterable[dict[str, Any]]:
    for key, figure in sorted(figures, key=lambda both: both[0]):
        yield asdict(key) | {name: value for name, value in asdict(figure).items() if value is not None}
