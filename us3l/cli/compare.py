"""`us3l compare`"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from us3l.cli.parse import parse
from us3l.errors import UserError

if TYPE_CHECKING:
    from us3l.evaluation.comparing import Comparison

SUFFIXES = (".csv", ".json", ".png", ".svg")


@dataclass(frozen=True)
class Compare:
    """Accuracy of several evaluated runs at each width, and the differences to the first run.

    Runs that differ in their seed alone are one column, with mean and standard deviation. It reads what `us3l evaluate`
    wrote, and computes nothing anew.

    examples:
      us3l compare runs/us3l runs/us-simsiam
      us3l compare runs/us3l runs/us-simsiam --data cifar10-paper --out table.csv table.json curves.png
      us3l compare runs/us3l runs/us-simsiam --metric knn
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folders of evaluated runs."""
    data: str | None = None
    """The evaluation to compare, by its name in eval/ (default: the one that all runs have, by the fast protocol
    if there are several)."""
    metric: Literal["linear", "knn", "finetuned"] | None = None
    """Which accuracy (default: the first of these that all runs have)."""
    out: tuple[Path, ...] = ()
    """Files to write: .csv, .json, .png or .svg."""
    overwrite: bool = False
    """Replace files of the same name."""


def main(arguments: list[str]) -> int:
    command = parse(Compare, "compare", arguments)
    from us3l.console import Console
    from us3l.evaluation.comparing import compare_runs
    from us3l.reporting.tables import comparison_table

    if not command.runs:
        raise UserError("say which runs to compare: us3l compare RUN RUN ...")
    for path in command.out:
        if path.suffix.lower() not in SUFFIXES:
            raise UserError(f"{path}: the comparison is written as {', '.join(SUFFIXES)}")
        if path.exists() and not command.overwrite:
            raise UserError(f"{path} already exists: choose another --out, or --overwrite")
    comparison = compare_runs(command.runs, command.data, command.metric)
    for path in command.out:
        write(path, comparison)
    console = Console()
    console.say(comparison.title)
    console.print(comparison_table(comparison))
    for difference in comparison.differences:
        console.say(f"take care: {difference}", style="yellow")
    for path in command.out:
        console.say(f"written: {path}")
    return 0


def write(path: Path, comparison: Comparison) -> None:
    import csv
    import io
    from dataclasses import asdict

    from us3l.files import write_json, write_text

    metric = comparison.metric
    if path.suffix.lower() == ".json":
        runs = {}
        for group in comparison.groups:
            accuracies = group.accuracies(metric)
            runs[group.name] = [asdict(row) | asdict(accuracies[row.width]) for row in group.results(metric)]
        write_json(path, {"metric": metric, "differences": comparison.differences, "runs": runs})
    elif path.suffix.lower() == ".csv":
        text = io.StringIO()
        writer = csv.DictWriter(text, list(comparison.rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(comparison.rows)
        write_text(path, text.getvalue())
    else:
        from us3l.reporting.figures import Line, cost_figure

        lines = [Line(group.name, group.results(metric), metric) for group in comparison.groups]
        cost_figure(lines, path, comparison.title)
