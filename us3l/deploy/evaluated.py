"""What `us3l evaluate` left in a run's folder that goes along with an exported network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from us3l.errors import UserError
from us3l.evaluation.linear import Probe
from us3l.evaluation.probes import load_probes
from us3l.evaluation.results import from_json
from us3l.files import read_json
from us3l.slimmable import Slimmable

PROBES = ".probes.safetensors"


@dataclass(frozen=True)
class Head:
    """A linear classifier to go along with a network."""

    probe: Probe
    classes: list[str]
    data: str
    """What it was learned on."""


def find_head(run: Path, net: Slimmable, width: float, name: str = "probe") -> Head:
    """The classifier of that width, learned on the data of that name; "probe" is the only one there is."""
    found = {path.name.removesuffix(PROBES): path for path in sorted((run / "eval").glob(f"*{PROBES}"))}
    if not found:
        raise UserError(f"{run} has no classifiers: us3l evaluate {run} --data DATA learns them")
    if name == "probe" and len(found) > 1:
        raise UserError(f"{run} has classifiers for {', '.join(found)}: choose one, --head {next(iter(found))}")
    if name != "probe" and name not in found:
        raise UserError(f"{run} has no classifiers for {name!r}, only for {', '.join(found)}")
    path = found[name] if name != "probe" else next(iter(found.values()))
    probes, classes, data = load_probes(path)
    fitting = [probe for known, probe in probes.items() if net.canonical(known) == net.canonical(width)]
    if not fitting:
        raise UserError(
            f"{path} has no classifier for width {width:g}: us3l evaluate {run} --data {data} --widths {width:g}"
        )
    return Head(fitting[0], classes or [str(number) for number in range(len(fitting[0].bias))], data)


def find_accuracy(run: Path, net: Slimmable, width: float, name: str | None = None) -> dict[str, Any] | None:
    """The accuracies of that width on the data of that name, or on the first that has any."""
    paths = sorted((run / "eval").glob("*.json" if name is None else f"{name}.json"))
    for path in paths:
        for row in from_json(read_json(path).get("widths", [])):
            if net.canonical(row.width) == net.canonical(width) and (row.linear, row.knn) != (None, None):
                return {"data": path.stem, "linear": row.linear, "knn": row.knn}
    return None
