"""What `us3l evaluate` left in a run's folder that goes along with an exported network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

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


class Classifier(nn.Module):
    """A network and its head: logits."""

    def __init__(self, network: nn.Module, probe: Probe) -> None:
        super().__init__()
        self.network = network
        classes, features = probe.weight.shape
        self.head = nn.Linear(features, classes)
        with torch.no_grad():
            self.head.weight.copy_(probe.weight)
            self.head.bias.copy_(probe.bias)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.network(images))


def find_head(run: Path, net: Slimmable, width: float, name: str = "probe") -> Head:
    """The classifier of that width, learned on the data of that name; "probe" is the only one there is."""
    heads = find_heads(run, net, None if name == "probe" else name)
    if net.canonical(width) not in heads:
        data = next(iter(heads.values())).data
        raise UserError(
            f"{run} has no classifier for width {width:g}: evaluate it on {data} with widths that have {width:g}"
        )
    return heads[net.canonical(width)]


def find_heads(run: Path, net: Slimmable, name: str | None = None) -> dict[float, Head]:
    """The classifiers of a run by canonical width, learned on the data of that name, or on the only one there is."""
    found = {path.name.removesuffix(PROBES): path for path in sorted((run / "eval").glob(f"*{PROBES}"))}
    if not found:
        raise UserError(f"{run} has no classifiers: evaluate it on labelled data, which learns them")
    if name is None and len(found) > 1:
        raise UserError(f"{run} has classifiers for {', '.join(found)}: choose one, head={next(iter(found))!r}")
    if name is not None and name not in found:
        raise UserError(f"{run} has no classifiers for {name!r}, only for {', '.join(found)}")
    probes, classes, data = load_probes(found[name] if name is not None else next(iter(found.values())))
    return {
        net.canonical(width): Head(probe, classes or [str(number) for number in range(len(probe.bias))], data)
        for width, probe in probes.items()
    }


def find_accuracy(run: Path, net: Slimmable, width: float, name: str | None = None) -> dict[str, Any] | None:
    """The accuracies of that width on the data of that name, or on the first that has any."""
    paths = sorted((run / "eval").glob("*.json" if name is None else f"{name}.json"))
    for path in paths:
        for row in from_json(read_json(path).get("widths", [])):
            if net.canonical(row.width) == net.canonical(width) and (row.linear, row.knn) != (None, None):
                return {"data": path.stem, "linear": row.linear, "knn": row.knn}
    return None
