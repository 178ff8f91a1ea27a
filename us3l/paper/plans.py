"""A table of the paper as work: the runs that it needs, and making those that are missing.

Any number of processes and machines that see the folder share the work: a run that another has claimed is left to it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from us3l.data.datasets import is_there
from us3l.paper.cells import PaperCell, Pretraining, cells_of, chosen_rows, jobs_of
from us3l.paper.claims import CLAIMS, DATA, queue_of
from us3l.paper.scales import ScaleName, scale_of
from us3l.paper.workspace import EvaluatedOn, Workspace, read_figures
from us3l.run.detections import DETECTOR, detection_stem, ended
from us3l.run.identity import EvaluationSplit
from us3l.run.training_log import read_speeds
from us3l.system.devices import AskedPrecision
from us3l.system.errors import UserError
from us3l.system.files import Taken, locked
from us3l.system.progress import Progress
from us3l.training.run_config import config_of
from us3l.width import Width

WAIT = 15.0  # seconds between looks at what other processes are doing


@dataclass(frozen=True)
class Plan:
    """What is to be done for a table."""

    table: str
    place: Workspace
    cells: list[PaperCell]
    """All figures of the table."""
    wanted: list[PaperCell]
    """Those to make."""
    jobs: list[Pretraining]
    """The runs that they need, teachers first."""
    absent: list[str]
    """Data sets that are not here; their figures stay empty."""

    def done(self, job: Pretraining) -> bool:
        """Return whether a run is evaluated, its figures are known from elsewhere, or those that it teaches are."""
        taught = [other for other in self.jobs if other.teacher == job]
        return self.place.done(job, self.wanted) or (bool(taught) and all(map(self.done, taught)))

    def state(self, job: Pretraining) -> str:
        """Return how far a run is, in a word or two."""
        run = self.place.run(job)
        if run.finished:
            return "done" if self.done(job) else "to evaluate"
        if self.done(job):
            return "known"
        return "begun" if run.config_file.exists() else "to train"

    @property
    def effort(self) -> float:
        """What is left to train, as epochs of the full network alone."""
        return sum(job.effort for job in self.jobs if not (self.place.run(job).finished or self.done(job)))

    @property
    def seconds(self) -> float | None:
        """How long that takes, at the pace of the steps of finished runs; None if there are none."""
        done = [(job, read_speeds(run)) for job in self.jobs if (run := self.place.run(job)).finished]
        timed = [(job.effort, sum(speed.seconds for speed in speeds)) for job, speeds in done if speeds]
        effort, seconds = (sum(values) for values in zip(*timed, strict=True)) if timed else (0, 0)
        return self.effort * seconds / effort if effort else None


def plan_table(
    table: str,
    scale: ScaleName = "mini",
    rows: Sequence[int] = (),
    seeds: int = 1,
    out: str | Path = "runs/reproduce",
    data: Mapping[str, str] | None = None,
    precision: AskedPrecision = "auto",
    absent_too: bool = False,
    known: str | Path | None = None,
    split: EvaluationSplit = "test",
) -> Plan:
    """Return what is to be done for a table.

    Args:
        table: Its name.
        scale: Runs for CPUs, or all as the paper has it.
        rows: Those to make, by their numbers from 1 (default: all).
        seeds: How many runs each row gets.
        out: Folder of all runs and tables.
        data: Where data sets lie, if not where their names lead.
        precision: Of the runs that are yet to begin.
        absent_too: Also plan runs whose data are not here.
        known: A file of figures that runs on other machines found.
        split: "validation" holds validation images out of the training, and tests on them.
    """
    if seeds < 1:
        raise UserError(f"`seeds` must be at least 1, not {seeds}")
    if table == CLAIMS and (scale != "small" or rows or seeds > 1 or split != "test"):
        raise UserError("the claims have rows, seeds and splits of their own: give `scale` small, and none of these")
    size = scale_of(scale)
    place = Workspace(Path(out) / scale, size, data or {}, precision, read_figures(known) if known else {})
    if table == CLAIMS:
        queue = queue_of(place)
        cells = queue.cells
        return Plan(table, place, cells, cells, queue.jobs, [] if is_here(place, DATA) else [DATA])
    cells = [replace(cell, split=split) for cell in cells_of(table, size)]
    wanted = chosen_rows(cells, rows)
    absent = [name for name in dict.fromkeys(cell.tested_on for cell in wanted) if not is_here(place, name)]
    if not absent_too:
        wanted = [cell for cell in wanted if cell.tested_on not in absent]
    return Plan(table, place, cells, wanted, jobs_of(wanted, size, seeds), absent)


def is_here(place: Workspace, data: str) -> bool:
    """Return whether a data set can be found. One that was named by a path must be."""
    source = place.source(data)
    if not is_there(source) and source != data:
        raise UserError(f"`data` {data}={source}: there is no such file or folder")
    return is_there(source)


@dataclass(frozen=True)
class Worker:
    """Makes the runs of a plan."""

    plan: Plan
    train: Callable[..., Any]
    """Like `us3l.training.configuration.train`."""
    evaluate: Callable[..., Any]
    """Like `us3l.evaluate`."""
    detect: Callable[..., Any]
    """Like `us3l.detect`."""
    progress: Progress

    def work(self) -> dict[str, str]:
        """Do what no other process is doing, until all is done.

        Returns:
            The runs that failed, by name, and why.

        Raises:
            Interrupted: It was asked to stop; the same call goes on.
        """
        failures: dict[str, str] = {}
        jobs, place = self.plan.jobs, self.plan.place
        left = [job for job in jobs if not self.plan.done(job)]
        while left:
            before = len(left)
            for job in list(left):
                if job.teacher and job.teacher.name in failures:
                    failures[job.name] = "its teacher failed"
                elif job.teacher and not place.run(job.teacher).finished:
                    continue
                else:
                    try:
                        with locked(place.folder / "claims" / job.name):
                            self.finish(job)
                    except Taken:
                        continue
                    except UserError as error:
                        failures[job.name] = str(error)
                left.remove(job)
                self.progress.say(f"{len(jobs) - len(left)} of {len(jobs)} runs are done", style="bold")
            if len(left) == before:
                self.progress.say(f"waiting for {len(left)} runs that other processes are at")
                wait()
                left = [job for job in left if not self.plan.done(job)]
        return failures

    def finish(self, job: Pretraining) -> None:
        """Train and evaluate what is missing of one run."""
        place = self.plan.place
        run = place.run(job)
        place.check(job)
        if not run.finished:
            begun = run.config_file.exists()
            self.progress.say(f"\n{job.name}", style="bold")
            self.train(config_of(run) if begun else place.config(job), run, resume=begun, progress=self.progress)
        for test, widths in place.missing(job, self.plan.wanted).items():
            (self.detect_objects if test.detection else self.probe)(job, test, sorted(widths, reverse=True))

    def probe(self, job: Pretraining, test: EvaluatedOn, widths: Sequence[float]) -> None:
        """Evaluate a run by linear probes on a data set."""
        data, place, scale = test.data, self.plan.place, self.plan.place.scale
        record = self.evaluate(
            place.run(job),
            place.source(data),
            split=test.split,
            train_images=scale.labelled,
            widths=tuple(widths),
            protocol=scale.protocol,
            probe="imagenet" if data == "imagenet" and scale.protocol == "paper" else "auto",
            floor=False,
            progress=self.progress,
        )
        percent = record.percent("linear")
        accuracies = ", ".join(f"{percent[width]:.1f} at {width:g}x" for width in widths if width in percent)
        self.progress.say(f"{data}, {test.split} images, linear probe, %: {accuracies}")

    def detect_objects(self, job: Pretraining, test: EvaluatedOn, widths: Sequence[float]) -> None:
        """Train and score a detector on each width of a run."""
        run, source = self.plan.place.run(job), self.plan.place.source(test.data)
        for width in widths:
            stem = detection_stem(run.detection_folder, Path(source).resolve().name, source, Width(width))
            settings = {"resume": ended(stem, DETECTOR).exists(), **self.plan.place.scale.detector}
            self.detect(run, source, width, **settings, progress=self.progress)


def wait() -> None:
    time.sleep(WAIT)
