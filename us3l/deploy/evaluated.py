"""What `us3l evaluate` left in a run's folder that goes along with an exported network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from us3l.errors import UserError
from us3l.evaluation.linear import Probe
from us3l.run import Run
from us3l.run.evaluations import read_evaluations
from us3l.run.probes import list_probes, probes_file, read_probes
from us3l.slimmable import Slimmable


@dataclass(frozen=True)
class Head:
    """A linear classifier to go along with a network."""

    probe: Probe
    classes: list[str]
    data: str
    """The evaluation that it comes from."""


def find_head(run: Path, net: Slimmable, width: float, name: str = "probe") -> Head:
    """The classifier of that width, learned on the data of that name; "probe" is the only one there is."""
    known = list_probes(Run(run))
    if not known:
        raise UserError(f"{run} has no classifiers: us3l evaluate {run} --data DATA learns them")
    if name == "probe" and len(known) > 1:
        raise UserError(f"{run} has classifiers for {', '.join(known)}: choose one, --head {known[0]}")
    if name != "probe" and name not in known:
        raise UserError(f"{run} has no classifiers for {name!r}, only for {', '.join(known)}")
    chosen = known[0] if name == "probe" else name
    probes = read_probes(Run(run), chosen)
    fitting = [one for trained, one in probes.linear.items() if net.canonical(trained) == net.canonical(width)]
    if not fitting:
        raise UserError(
            f"{probes_file(Run(run), chosen)} has no classifier for width {width:g}: "
            f"us3l evaluate {run} --data {probes.data} --widths {width:g}"
        )
    weight, bias = fitting[0]
    return Head(Probe(weight, bias), probes.classes or [str(number) for number in range(len(bias))], chosen)


def find_accuracy(run: Path, net: Slimmable, width: float, name: str | None = None) -> dict[str, Any] | None:
    """The accuracies of that width on the data of that name, or on the first that has any."""
    for record in read_evaluations(Run(run)).values():
        row = record.at(net, width)
        if name in (None, record.name) and row and (row.linear, row.knn) != (None, None):
            return {"data": record.name, "linear": row.linear, "knn": row.knn}
    return None
