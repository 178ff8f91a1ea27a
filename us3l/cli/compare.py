"""`us3l compare`"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from us3l.cli.parse import parse
from us3l.errors import UserError

if TYPE_CHECKING:
    from us3l.run.evaluations import EvaluationRecord, WidthResult

Runs = dict[str, "list[WidthResult]"]
SUFFIXES = (".csv", ".json", ".png", ".svg")


@dataclass(frozen=True)
class Compare:
    """Accuracy of several evaluated runs at each width, and the differences to the first run.

    It reads what `us3l evaluate` wrote, and computes nothing anew.

    examples:
      us3l compare runs/us3l runs/us-simsiam
      us3l compare runs/us3l runs/us-simsiam --data cifar10-paper --out table.csv table.json curves.png
      us3l compare runs/us3l runs/us-simsiam --metric knn
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folders of evaluated runs."""
    data: str | None = None
    """The evaluation to compare, by its name in eval/ (default: the one that all runs have)."""
    metric: Literal["linear", "knn", "finetuned"] | None = None
    """Which accuracy (default: the first of these that all runs have)."""
    out: tuple[Path, ...] = ()
    """Files to write: .csv, .json, .png or .svg."""
    overwrite: bool = False
    """Replace files of the same name."""


def main(arguments: list[str]) -> int:
    command = parse(Compare, "compare", arguments)
    from us3l.console import Console
    from us3l.report.tables import comparison_table
    from us3l.run.evaluations import METRICS

    for path in command.out:
        if path.suffix.lower() not in SUFFIXES:
            raise UserError(f"{path}: the comparison is written as {', '.join(SUFFIXES)}")
        if path.exists() and not command.overwrite:
            raise UserError(f"{path} already exists: choose another --out, or --overwrite")
    console = Console()
    data = command.data or common_data(command.runs)
    evaluations = read(command.runs, data)
    runs = {name: one.widths for name, one in evaluations.items()}
    metric = command.metric or common_metric(runs)
    if not any(getattr(result, metric) is not None for results in runs.values() for result in results):
        raise UserError(f"none of the runs has an accuracy by {METRICS[metric]} on {data}")
    title = f"{data}: top-1 accuracy by {METRICS[metric]}, %"
    console.print(title, highlight=False)
    console.print(comparison_table(runs, metric))
    for what in ("train_images", "test_images", "training"):
        if len({str(getattr(one, what)) for one in evaluations.values()}) > 1:
            console.print(f"take care: the runs' evaluations differ in {what}", style="yellow", highlight=False)
    for path in command.out:
        write(path, runs, metric, title)
        console.say(f"written: {path}")
    return 0


def common_data(folders: tuple[Path, ...]) -> str:
    """The name of the evaluation that all runs have; of several, an error that lists them."""
    if not folders:
        raise UserError("say which runs to compare: us3l compare RUN RUN ...")
    names = [{path.stem for path in (folder / "eval").glob("*.json")} for folder in folders]
    for folder, found in zip(folders, names, strict=True):
        if not found:
            raise UserError(f"{folder} has no evaluation: us3l evaluate {folder} --data DATA")
    common = sorted(set.intersection(*names))
    if len(common) == 1:
        return common[0]
    if common:
        raise UserError(f"the runs have several evaluations in common, {', '.join(common)}: choose one by --data")
    each = "; ".join(f"{folder}: {', '.join(sorted(found))}" for folder, found in zip(folders, names, strict=True))
    raise UserError(f"the runs have no evaluation in common ({each}): evaluate them on the same data")


def read(folders: tuple[Path, ...], data: str) -> dict[str, EvaluationRecord]:
    """The evaluations by the names of their runs, or by their paths where names are the same."""
    from us3l.run import Run
    from us3l.run.evaluations import read_evaluation

    if len({folder.resolve() for folder in folders}) < len(folders):
        raise UserError("a run is given twice")
    evaluations: dict[str, EvaluationRecord] = {}
    for folder in folders:
        name = folder.resolve().name
        evaluations[str(folder) if name in evaluations else name] = read_evaluation(Run(folder), data)
    return evaluations


def common_metric(runs: Runs) -> str:
    from us3l.run.evaluations import METRICS

    for metric in METRICS:
        if all(any(getattr(result, metric) is not None for result in results) for results in runs.values()):
            return metric
    raise UserError("the runs have no kind of accuracy in common: choose one by --metric, or evaluate them alike")


def write(path: Path, runs: Runs, metric: str, title: str) -> None:
    import csv
    import io

    from us3l.files import write_json, write_text
    from us3l.report.tables import comparison
    from us3l.run.evaluations import to_json

    if path.suffix.lower() == ".json":
        write_json(path, {"metric": metric, "runs": {name: to_json(results) for name, results in runs.items()}})
    elif path.suffix.lower() == ".csv":
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["width", *runs])
        writer.writerows([width, *values.values()] for width, values in comparison(runs, metric).items())
        write_text(path, text.getvalue())
    else:
        from us3l.report.figures import Line, cost_figure

        cost_figure([Line(name, results, metric) for name, results in runs.items()], path, title)
