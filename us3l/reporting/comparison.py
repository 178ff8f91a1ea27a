"""A comparison of runs as a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from us3l.evaluation.compare_runs import Comparison
from us3l.run.records import write_csv
from us3l.system.errors import UserError
from us3l.system.files import write_json

SUFFIXES = (".csv", ".json", ".png", ".svg")


def check_free(paths: Sequence[Path], overwrite: bool = False) -> None:
    """That a comparison can be written to these files, and replaces nothing unasked."""
    for path in paths:
        if path.suffix.lower() not in SUFFIXES:
            raise UserError(f"{path}: the comparison is written as {', '.join(SUFFIXES)}")
        if path.exists() and not overwrite:
            raise UserError(f"{path} already exists: choose another `out`, or set `overwrite`")


def write_comparison(path: Path, comparison: Comparison) -> None:
    """Write it as the file's ending says."""
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
