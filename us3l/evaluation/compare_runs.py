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
from us3l.run.evaluations import METRICS, EvaluationRecord, Score, WidthResult, usual_evaluation
from us3l.system.errors import UserError
from us3l.width import Width

EVALUATED = ("size", "train_images", "test_images", "probe", "training")
"""What evaluations that are compared should have in common."""


@dataclass(frozen=True)
class Group:
    """A run, or several that differ in their seed alone."""

    name: str
    records: list[EvaluationRecord]

    def results(self, metric: str) -> dict[Width, WidthResult]:
        """Return one accuracy of the group by width, widest first: the mean over its runs, with their deviation."""
        rows: dict[Width, list[WidthResult]] = {}
        for row in (row for record in self.records for row in record.widths if metric in row.scores):
            rows.setdefault(row.width, []).append(row)
        return {
            width: WidthResult(width, rows[width][-1].cost, {metric: mean([row.scores[metric] for row in rows[width]])})
            for width in sorted(rows, reverse=True)
        }


def mean(scores: Sequence[Score]) -> Score:
    """Return the mean over runs; its `seeds` is their number."""
    top1, low, high = (fmean(getattr(score, name) for score in scores) for name in ("top1", "low", "high"))
    deviation = stdev(score.top1 for score in scores) if len(scores) > 1 else None
    return Score(top1, None, low, high, (), deviation, len(scores))


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
        return sorted({width for group in self.groups for width in group.results(self.metric)}, reverse=True)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One dictionary per width, for pandas: each group's mean, and of several runs the deviation and the number."""
        rows: list[dict[str, Any]] = [{"width": width} for width in self.widths]
        for group in self.groups:
            results = group.results(self.metric)
            for row in rows:
                score = results[row["width"]].scores[self.metric] if row["width"] in results else None
                row[group.name] = score and score.top1
                if len(group.records) > 1:
                    _, deviation, runs = columns(group.name)
                    row |= {deviation: score and score.deviation, runs: score.seeds if score else 0}
        return rows


def columns(name: str) -> tuple[str, str, str]:
    """Return the columns of a group of several runs."""
    return name, f"{name} deviation", f"{name} runs"


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
    evaluations = [with_accuracy(run.evaluations) for run in folders]
    for run, records_of_run in zip(folders, evaluations, strict=True):
        if not records_of_run:
            raise UserError(
                f"{run.folder} has no evaluation: `us3l.evaluate({str(run.folder)!r}, data=DATA)` makes one"
            )
    data = data or common_evaluation(folders, evaluations)
    for run, records_of_run in zip(folders, evaluations, strict=True):
        if data not in records_of_run:
            raise UserError(f"{run.folder} has no evaluation {data!r}, only {', '.join(records_of_run)}")
    records = [records_of_run[data] for records_of_run in evaluations]
    metric = metric or common_metric(records)
    names = unique_names(folders)
    groups = grouped(folders, names, records)
    for group in groups:
        if not group.results(metric):
            raise UserError(
                f"{group.name} has no accuracy by {METRICS[metric]} on {data}: leave it out, or evaluate it"
            )
    return Comparison(data, metric, groups, differences(folders, names, records))


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
        names.append(str(run.folder.resolve()) if name in names else name)
    return names


def grouped(runs: Sequence[Run], names: Sequence[str], records: Sequence[EvaluationRecord]) -> list[Group]:
    """Runs of the same settings but for the seed, in the order in which their first was given."""
    groups: dict[str, list[int]] = {}
    for position, run in enumerate(runs):
        settings, seed = without_seed(run)
        same = groups.get(settings, [])
        repeated = any(without_seed(runs[other])[1] == seed for other in same)
        groups.setdefault(f"{run.folder}" if repeated or not settings else settings, []).append(position)
    named = group_names([[names[position] for position in members] for members in groups.values()])
    return [
        Group(name, [records[position] for position in members])
        for name, members in zip(named, groups.values(), strict=True)
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


def group_names(groups: Sequence[Sequence[str]]) -> list[str]:
    """Return a name for each group of runs; no two have a column of a table in common.

    Args:
        groups: The names of the runs of each, which differ.

    >>> group_names([["a-0", "a-1"], ["b"]]), group_names([["a-0", "a-1"], ["a-2", "a-3"]]), group_names([["width"]])
    (['a', 'b'], ['a-0, a-1', 'a-2, a-3'], ['width (2)'])
    """
    short = [common_name(names) for names in groups]
    taken, unique = {"width"}, []
    for name, names in zip(short, groups, strict=True):
        choices = [", ".join(names) if short.count(name) > 1 else name]
        choices += [f"{choices[0]} ({number})" for number in range(2, 3 + len(taken))]
        chosen = next(choice for choice in choices if taken.isdisjoint(columns(choice)))
        taken |= {*columns(chosen)}
        unique.append(chosen)
    return unique


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
