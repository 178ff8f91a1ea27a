"""A comparison of runs as a file."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from us3l.evaluation.comparing import Comparison
from us3l.system.errors import UserError
from us3l.system.files import write_json, write_text

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
        from us3l.reporting.accuracy_figures import Line, cost_figure

        lines = [Line(group.name, group.results(metric), metric) for group in comparison.groups]
        cost_figure(lines, path, comparison.title)
