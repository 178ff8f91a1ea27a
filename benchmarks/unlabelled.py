"""How well quality without labels ranks runs: `python -m benchmarks.unlabelled RUNS... [--kept figures.json]`.

Finds all evaluated runs in the folders, and compares each figure with the accuracy of the linear probe by Kendall's tau
over the pairs of runs at the same width: 1 if it always names the better run, 0 as by chance, -1 if never. The
interval of 95 % is by bootstrap over runs. Figures that an evaluation does not have are measured on the test images of
the run's data, and kept in the file. Nothing in the runs is changed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from us3l.data.preprocessing import Preprocessing
from us3l.data.sources import load
from us3l.evaluation.prepare import prepare
from us3l.evaluation.unlabelled import IMAGES, measure_quality
from us3l.run import Run
from us3l.run.evaluations import QUALITIES, EvaluationRecord, usual_evaluation
from us3l.run.training_log import Gauges, read_records
from us3l.system.files import write_json
from us3l.training.run_config import config_of

NAMES = QUALITIES | {"spread": "spread", "knn": "kNN (with labels)"}
RESAMPLES = 2000


@dataclass(frozen=True)
class Row:
    """One width of one run."""

    run: str
    width: float
    linear: float
    figures: dict[str, float]
    """By the names of `NAMES`."""


def find_runs(folders: Iterable[Path]) -> list[Run]:
    """The finished and evaluated runs in some folders."""
    found = {
        path.parent.resolve(): Run(path.parent) for folder in folders for path in sorted(folder.rglob("config.yaml"))
    }
    return [run for run in found.values() if run.finished and run.evaluation_folder.is_dir()]


def rows_of(run: Run, kept: dict[str, dict[str, dict[str, float]]]) -> list[Row]:
    """What is known of each width of a run; what was not measured is measured, and joins `kept`."""
    known = {name: one for name, one in run.evaluations.items() if one.percent("linear")}
    if not known:
        return []
    record, alone = usual_evaluation(known), config_of(run).recipe.network.individual
    last = [look for look in read_records(run) if isinstance(look, Gauges)][-1:]
    rows = []
    for result in record.widths:
        if "linear" not in result.scores:
            continue
        linear, knn = result.scores["linear"].top1, result.percent("knn")
        width = f"{result.width:g}"
        figures = dict(result.quality or quality(run, record, kept).get(width, {}))
        if result.width == 1:
            figures.pop("agreement", None)  # 100 % of every run
        figures |= {"knn": knn} if knn is not None else {}
        gauges = last[0].gauges.get(width, {}) if last else {}
        figures |= {"spread": gauges["spread"]} if "spread" in gauges else {}
        rows.append(Row(str(run.folder), float(result.width) if alone is None else alone, linear, figures))
    return rows


def quality(
    run: Run, record: EvaluationRecord, kept: dict[str, dict[str, dict[str, float]]]
) -> dict[str, dict[str, float]]:
    """By width; measured if nobody did."""
    key = f"{run.folder.resolve()} {run.weights.weights if run.weights else ''}"
    if key not in kept:
        net = run.network
        images = load(config_of(run).source, "test", Preprocessing.of(net).resize, IMAGES)
        widths = [row.width for row in record.widths]
        measured = measure_quality(prepare(net, images, images, widths, labelled=False, compared=True))
        kept[key] = {f"{width:g}": figures for width, figures in measured.items()}
    return kept[key]


def tau(rows: Sequence[Row], name: str, resamples: int = RESAMPLES) -> tuple[float, float, float, int]:
    """Kendall's tau of a figure and the linear probe, over pairs of different runs at the same width.

    Args:
        rows: All widths of all runs.
        name: Of the figure, which all rows have.
        resamples: Of the runs, for the interval.

    Returns:
        Tau, the ends of its 95 % interval, and the number of pairs.
    """
    figure, linear, width = (
        np.array(values) for values in zip(*((r.figures[name], r.linear, r.width) for r in rows), strict=True)
    )
    runs, of_run = np.unique([row.run for row in rows], return_inverse=True)
    pairs = (width[:, None] == width) & (of_run[:, None] != of_run)
    agree = np.sign(figure[:, None] - figure) * np.sign(linear[:, None] - linear) * pairs
    generator = np.random.default_rng(0)
    found = []
    for _ in range(resamples):
        weight = np.bincount(generator.integers(len(runs), size=len(runs)), minlength=len(runs))[of_run]
        if total := weight @ pairs @ weight:
            found.append(weight @ agree @ weight / total)
    low, high = np.percentile(found, (2.5, 97.5)) if found else (-1.0, 1.0)
    return float(agree.sum() / max(1, pairs.sum())), float(low), float(high), int(pairs.sum()) // 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--kept", type=Path, help="file for what was measured")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    kept = json.loads(arguments.kept.read_text()) if arguments.kept and arguments.kept.exists() else {}
    rows = []
    for run in find_runs(arguments.runs):
        rows += rows_of(run, kept)
        if arguments.kept:
            write_json(arguments.kept, kept)
    print(f"{len({row.run for row in rows})} runs, {len(rows)} networks")
    print("| figure | tau | 95 % interval | pairs | by width |\n| --- | --- | --- | --- | --- |")
    for name, title in NAMES.items():
        having = [row for row in rows if name in row.figures]
        if len(having) < 2:
            continue
        value, low, high, pairs = tau(having, name)
        parts = []
        for width in sorted({row.width for row in having}, reverse=True):
            same = [row for row in having if row.width == width]
            if len(same) > 2:
                parts.append(f"{width:g}x {tau(same, name, 0)[0]:+.2f} ({len(same)})")
        print(f"| {title} | {value:+.2f} | {low:+.2f} to {high:+.2f} | {pairs} | {', '.join(parts)} |")


if __name__ == "__main__":
    main()
