"""`us3l compare`: several runs side by side."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from us3l.commands.command import Command, settings_of, signed_by
from us3l.setting_types import SomePaths, SomeRuns, several
from us3l.system.errors import UserError

if TYPE_CHECKING:
    from typing import Unpack

    from us3l.commands.names import CompareNames
    from us3l.commands.screen import CommandScreen
    from us3l.evaluation.compare_runs import Comparison
    from us3l.setting_types import AnyRun

SUFFIXES = (".csv", ".json", ".png", ".svg")


@dataclass(frozen=True)
class Compare(Command):
    """Compare evaluated runs: accuracy at each width, and the difference from the first run.

    Runs that differ only in their seed share one column, with mean and standard deviation. The command reads what
    `us3l evaluate` wrote, and computes nothing again.

    examples:
      us3l compare runs/us3l runs/us-simsiam
      us3l compare runs/us3l runs/us-simsiam --data cifar10-paper --out table.csv table.json curves.png
      us3l compare runs/us3l runs/us-simsiam --metric knn
    """

    runs: SomeRuns
    """Folders of evaluated runs."""
    _: KW_ONLY
    data: str | None = None
    """The evaluation to compare, by its name in eval/ (default: the one that all runs have; if there are several, that
    of the fast protocol)."""
    metric: Literal["linear", "knn", "finetuned"] | None = None
    """Which accuracy (default: the first of these that all runs have)."""
    out: SomePaths = ()
    """Files to write: .csv, .json, .png or .svg."""
    overwrite: bool = False
    """Replace files of the same name."""


def compared(settings: Compare) -> Comparison:
    """Do the work of `compare`."""
    from us3l.evaluation.compare_runs import compare_runs

    if not settings.runs:
        raise UserError("say which runs to compare: `us3l.compare(RUN, RUN)`")
    files = [Path(path) for path in several(settings.out)]
    check_free(files, settings.overwrite)
    comparison = compare_runs(settings.runs, settings.data, settings.metric)
    for path in files:
        write_comparison(path, comparison)
    return comparison


def check_free(paths: list[Path], overwrite: bool) -> None:
    """Raise a `UserError` unless a comparison can be written to these files and replaces nothing unasked."""
    for path in paths:
        if path.suffix.lower() not in SUFFIXES:
            raise UserError(f"{path}: the comparison is written as {', '.join(SUFFIXES)}")
        if path.exists() and not overwrite:
            raise UserError(f"{path} already exists: choose another `out`, or set `overwrite`")


def write_comparison(path: Path, comparison: Comparison) -> None:
    """Write a comparison as the file's ending says."""
    from us3l.run.records import write_csv
    from us3l.system.files import write_json

    metric = comparison.metric
    if path.suffix.lower() == ".json":
        runs = {}
        for group in comparison.groups:
            runs[group.name] = [
                {name: value for name, value in row.row.items() if value is not None}
                | {"mean": score.top1, "deviation": score.deviation, "runs": score.seeds}
                for row in group.results(metric).values()
                for score in row.scores.values()
            ]
        write_json(path, {"metric": metric, "differences": comparison.differences, "runs": runs})
    elif path.suffix.lower() == ".csv":
        write_csv(path, comparison.rows)
    else:
        from us3l.reporting.accuracy_figures import Line, cost_figure

        lines = [Line(group.name, [*group.results(metric).values()], metric) for group in comparison.groups]
        cost_figure(lines, path, comparison.title)


@signed_by(Compare, compared)
def compare(*runs: AnyRun, **settings: Unpack[CompareNames]) -> Comparison:
    """Compare evaluated runs at each width; runs that differ only in their seed are one column.

    Returns:
        The comparison with the first run; `rows` has a dictionary per width.
    """
    return compared(settings_of(Compare, (runs,), settings))


def main(settings: Compare, screen: CommandScreen) -> None:
    from us3l.reporting.tables import comparison_table

    comparison = compared(settings)
    screen.say(comparison.title)
    screen.console.print(comparison_table(comparison))
    for difference in comparison.differences:
        screen.say(f"take care: {difference}", style="yellow")
    for path in several(settings.out):
        screen.say(f"written: {path}")
