"""Evaluated runs side by side: those that differ only in their seed are one, with mean and standard deviation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from us3l.run import Run
from us3l.run.evaluations import METRICS, EvaluationRecord, WidthResult, read_evaluations, usual_evaluation
from us3l.system.errors import UserError
from us3l.width import Width

EVALUATED = ("size", "train_images", "test_images", "probe", "training")
"""What evaluations that are compared should have in common."""


@dataclass(frozen=True)
class Accuracy:
    """Of one width, in percent."""

    mean: float
    deviation: float | None
    """The standard deviation over runs of different seeds; None of a single run."""
    runs: int


@dataclass(frozen=True)
class Group:
    """A run, or several that differ in their seed alone."""

    name: str
    records: list[EvaluationRecord]

    def accuracies(self, metric: str) -> dict[Width, Accuracy]:
        """By width, widest first."""
        percents = [record.percent(metric) for record in self.records]
        widths = sorted({width for values in percents for width in values}, reverse=True)
        of_width = {width: [values[width] for values in percents if width in values] for width in widths}
        return {
            width: Accuracy(fmean(values), stdev(values) if len(values) > 1 else None, len(values))
            for width, values in of_width.items()
        }

    def results(self, metric: str) -> list[WidthResult]:
        """The mean as the result of one run, for figures."""
        costs = {row.width: row for record in self.records for row in record.widths}
        means = {width: accuracy.mean for width, accuracy in self.accuracies(metric).items()}
        return [
            WidthResult(width, costs[width].params, costs[width].macs, **{metric: mean})
            for width, mean in means.items()
        ]


@dataclass(frozen=True)
class Comparison:
    """One kind of accuracy of several runs, on the same data."""

    data: str
    """The name of the evaluations."""
    metric: str
    groups: list[Group]
    differences: list[str]
    """In what the runs differ that makes them hard to compare, each in words."""

    @property
    def title(self) -> str:
        return f"{self.data}: top-1 accuracy by {METRICS[self.metric]}, %"

    @property
    def widths(self) -> list[Width]:
        """All that any run was evaluated at, widest first."""
        return sorted({width for group in self.groups for width in group.accuracies(self.metric)}, reverse=True)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One dictionary per width, for pandas: each group's mean, and of several runs the deviation and the number."""
        rows = []
        for width in self.widths:
            row: dict[str, Any] = {"width": width}
            for group in self.groups:
                found = group.accuracies(self.metric).get(width)
                row[group.name] = found.mean if found else None
                if len(group.records) > 1:
                    row[f"{group.name} deviation"] = found.deviation if found else None
                    row[f"{group.name} runs"] = found.runs if found else 0
            rows.append(row)
        return rows


def compare_runs(runs: Sequence[Run | str | Path], data: str | None = None, metric: str | None = None) -> Comparison:
    """Read what evaluations of several runs found; nothing is computed again.

    Args:
        runs: Their folders, the one to compare with first.
        data: The evaluation to compare, by its name (default: the one that all runs have, see `usual_evaluation`).
        metric: "linear", "finetuned" or "knn" (default: the first of these that all runs have).
    """
    folders = [run if isinstance(run, Run) else Run(run) for run in runs]
    if not folders:
        raise UserError("say which runs to compare")
    if len({run.folder.resolve() for run in folders}) < len(folders):
        raise UserError("a run is given twice")
    evaluations = [with_accuracy(read_evaluations(run)) for run in folders]
    for run, known in zip(folders, evaluations, strict=True):
        if not known:
            raise UserError(
                f"{run.folder} has no evaluation: `us3l.evaluate({str(run.folder)!r}, data=DATA)` makes one"
            )
    data = data or common_evaluation(folders, evaluations)
    for run, known in zip(folders, evaluations, strict=True):
        if data not in known:
            raise UserError(f"{run.folder} has no evaluation {data!r}, only {', '.join(known)}")
    records = [known[data] for known in evaluations]
    metric = metric or common_metric(records)
    if not any(record.percent(metric) for record in records):
        raise UserError(f"none of the runs has an accuracy by {METRICS[metric]} on {data}")
    names = unique_names(folders)
    return Comparison(data, metric, grouped(folders, names, records), differences(folders, names, records))


def with_accuracy(records: dict[str, EvaluationRecord]) -> dict[str, EvaluationRecord]:
    """Without those of images that have no labels."""
    return {name: record for name, record in records.items() if record.metric}


def common_evaluation(runs: Sequence[Run], evaluations: Sequence[dict[str, EvaluationRecord]]) -> str:
    """The name of the evaluation that all runs have; of several the usual one."""
    common = {name: record for name, record in evaluations[0].items() if all(name in known for known in evaluations)}
    if not common:
        each = "; ".join(
            f"{run.folder}: {', '.join(sorted(known))}" for run, known in zip(runs, evaluations, strict=True)
        )
        raise UserError(f"the runs have no evaluation in common ({each}): evaluate them on the same data")
    return usual_evaluation(common).name


def common_metric(records: Sequence[EvaluationRecord]) -> str:
    for metric in METRICS:
        if all(record.percent(metric) for record in records):
            return metric
    raise UserError("the runs have no kind of accuracy in common: choose a `metric`, or evaluate them in the same way")


def unique_names(runs: Sequence[Run]) -> list[str]:
    """The names of their folders, or their paths where names are the same."""
    names: list[str] = []
    for run in runs:
        name = run.folder.resolve().name
        names.append(str(run.folder) if name in names else name)
    return names


def grouped(runs: Sequence[Run], names: Sequence[str], records: Sequence[EvaluationRecord]) -> list[Group]:
    """Runs of the same settings but for the seed, in the order in which their first was given."""
    groups: dict[str, list[int]] = {}
    for position, run in enumerate(runs):
        settings, seed = without_seed(run)
        same = groups.get(settings, [])
        repeated = any(without_seed(runs[other])[1] == seed for other in same)
        groups.setdefault(f"{run.folder}" if repeated or not settings else settings, []).append(position)
    return [
        Group(common_name([names[position] for position in members]), [records[position] for position in members])
        for members in groups.values()
    ]


def without_seed(run: Run) -> tuple[str, Any]:
    """All that decides what a run learns, as text, and its seed; of a model without a run, nothing."""
    if not run.started:
        return "", None
    settings = run.settings
    recipe = dict(settings.get("recipe") or {})
    seed = recipe.pop("seed", None)
    return json.dumps([settings.get("data"), recipe], sort_keys=True, default=str), seed


def common_name(names: Sequence[str]) -> str:
    """What several runs' names begin with.

    >>> common_name(["us3l-seed0", "us3l-seed1"]), common_name(["a", "b"]), common_name(["us3l"])
    ('us3l-seed', 'a, b', 'us3l')
    """
    if len(names) == 1:
        return names[0]
    same = takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    return "".join(letters[0] for letters in same).rstrip("-_. /0123456789") or ", ".join(names)


def differences(runs: Sequence[Run], names: Sequence[str], records: Sequence[EvaluationRecord]) -> list[str]:
    """What makes runs hard to compare: other images, other numbers of them, other sizes, other training."""
    found = []

    def tell(what: str, values: Sequence[Any]) -> None:
        known = [json.dumps(value, sort_keys=True, default=str) for value in values]
        if len(set(known)) > 1:
            each = ", ".join(f"{name} {value}" for name, value in zip(names, known, strict=True))
            found.append(f"{what} ({each})")

    for setting in EVALUATED:
        tell(f"evaluated with different {setting}", [getattr(record, setting) for record in records])
    identities = [record.identity for record in records if record.identity]
    if any(not identities[0].agrees(other) for other in identities[1:]) and not found:
        found.append("evaluated on different images of the same name")
    settings = [run.settings for run in runs if run.started]
    if len(settings) == len(runs):
        recipes = [one.get("recipe") or {} for one in settings]
        tell("pre-trained on different data", [one.get("data") for one in settings])
        tell("pre-trained on different numbers of images", [recipe.get("images") for recipe in recipes])
        tell("pre-trained at different sizes", [(recipe.get("views") or {}).get("size") for recipe in recipes])
    return found
