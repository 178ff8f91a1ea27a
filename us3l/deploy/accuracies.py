"""What widths are ranked by: what `us3l evaluate`, a search or a comparison with the full network found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from us3l.run import Run
from us3l.run.evaluations import METRICS, usual_evaluation
from us3l.run.profiles import Profile
from us3l.slimmable import Slimmable
from us3l.system.errors import UserError
from us3l.width import Width


@dataclass(frozen=True)
class Accuracies:
    """What widths are ranked by, in percent."""

    data: str
    metric: str
    """A name of `us3l.run.evaluations.METRICS`, or "agreement" with the full network."""
    percent: Mapping[Width, float]
    """By canonical width."""

    @property
    def described(self) -> str:
        """For messages.

        >>> Accuracies("pets", "linear", {}).described
        'linear probe accuracy on pets'
        """
        if self.metric == "agreement":
            return f"agreement with the full network on {self.data}"
        return f"{METRICS[self.metric]} accuracy on {self.data}"


def searched(run: Run, net: Slimmable) -> Accuracies | None:
    """What searches found, to rank networks by where nothing was evaluated: the scores of the newest one."""
    newest = next(reversed(run.searches.values()), None)
    if newest is None:
        return None
    return Accuracies(newest.data, "agreement", {net.canonical(one.width): one.score for one in newest.networks})


def best_searched(run: Run, net: Slimmable) -> list[Width]:
    """The best sub-network of each search."""
    return [net.canonical(record.best) for record in run.searches.values()]


def read_accuracies(run: Run, net: Slimmable, data: str | None = None) -> Accuracies | None:
    """What evaluation found: in the record of that name, or in the usual one; None if there is no accuracy."""
    known = run.evaluations
    if data is not None and data not in known:
        there = f"only {', '.join(known)}" if known else "none at all"
        raise UserError(f"{run.folder} has no evaluation {data!r}, {there}: evaluate it first")
    with_accuracy = {name: record for name, record in known.items() if record.metric}
    if data is None and not with_accuracy:
        return None
    record = usual_evaluation(with_accuracy) if data is None else known[data]
    if (metric := record.metric) is None:
        return None
    percent = {net.canonical(width): value for width, value in record.percent(metric).items()}
    return Accuracies(record.name, metric, percent)


def by_agreement(profile: Profile) -> Accuracies | None:
    """What to rank widths by where nothing was evaluated."""
    found = profile.agreement
    return Accuracies(found.data, "agreement", found.percent) if found else None


def find_accuracy(run: Run, net: Slimmable, width: Width, name: str | None = None) -> dict[str, Any] | None:
    """The accuracies of that width on the data of that name, or on the first that has any."""
    for record in run.evaluations.values():
        row = record.at(net, width)
        if name in (None, record.name) and row and row.scores.keys() & {"linear", "knn"}:
            return {"data": record.name, "linear": row.percent("linear"), "knn": row.percent("knn")}
        if name == record.name and row and "finetuned" in row.scores:
            return {"data": record.name, "finetuned": row.percent("finetuned")}
    return None
