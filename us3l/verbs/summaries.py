"""`us3l.report` and `us3l.reproduce`: the page of a run or of several, the tables of the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from us3l.paper.scales import ScaleName
from us3l.system.devices import AskedPrecision
from us3l.system.progress import Progress, Told, progress_of
from us3l.verbs.arguments import AnyRun, check_names, run_of, several
from us3l.verbs.measuring import detect, evaluate
from us3l.verbs.pretraining import train

if TYPE_CHECKING:
    from us3l.reporting.reproduction import Reproduction
    from us3l.run.evaluations import EvaluationSplit


def report(
    *runs: AnyRun, out: str | Path | None = None, progress: Progress | Told | None = None, **settings: Any
) -> Path:
    """Write one page about a run, or several runs side by side: an HTML file that opens anywhere.

    Args:
        runs: finished or not.
        out: the page (default, for one run: report.html in its folder, which is replaced).
        progress: "silent" (the default), "lines", "live", or an object of your own.
        settings: those of `us3l report`, such as `images=False` or `overwrite=True`.

    Returns:
        Where the page is.
    """
    from us3l.reporting.build import build_report

    check_names(build_report, settings)
    return build_report([run_of(run) for run in runs], out, progress=progress_of(progress), **settings)


def reproduce(
    table: str,
    *,
    scale: ScaleName = "mini",
    rows: Sequence[int] | int = (),
    seeds: int = 1,
    out: str | Path = "runs/reproduce",
    data: Mapping[str, str] | None = None,
    precision: AskedPrecision = "auto",
    known: str | Path | None = None,
    split: EvaluationSplit = "test",
    table_only: bool = False,
    progress: Progress | Told | None = None,
) -> Reproduction:
    """Fill a table of the paper: train and evaluate the runs that it lacks, and write both results.

    Args:
        table: its name, see `us3l reproduce --help`.
        scale: runs for CPUs, of 230 steps ("mini") or 2,145 ("small"), or all as the paper has it ("paper").
        rows: those to train, by their numbers from 1 (default: all).
        seeds: train each row with this many seeds.
        out: folder of all runs and tables.
        data: where data sets lie, by their names (default: where `us3l download` puts them).
        precision: arithmetic of the runs that are yet to begin, as in `us3l.pretrain`.
        known: `tables/figures.json` of another folder: runs whose figures it has are not trained.
        split: "validation" holds a tenth of each class out of the training, and tests on it: to choose settings without
            the test images. Its runs are others than those of "test".
        table_only: train nothing; write the table from what is there.
        progress: "silent" (the default), "lines", "live", or an object of your own.

    Returns:
        The table; `rows` has a dictionary per figure, `failures` the runs that failed.
    """
    from us3l.paper.plans import Worker, plan_table
    from us3l.reporting.reproduction import write_reproduction

    failures: dict[str, str] = {}
    while True:  # what the claims need next depends on what was found
        plan = plan_table(table, scale, several(rows), seeds, out, data, precision, known=known, split=split)
        if table_only or all(plan.done(job) or job.name in failures for job in plan.jobs):
            return write_reproduction(plan, failures)
        failures |= Worker(plan, train, evaluate, detect, progress_of(progress)).work()
