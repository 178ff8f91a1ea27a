"""What `us3l evaluate` left in a run's folder that goes along with an exported network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from us3l.errors import UserError
from us3l.evaluation.linear import Probe
from us3l.run import Run
from us3l.run.evaluations import read_evaluations
from us3l.run.probes import list_probes, read_probes
from us3l.slimmable import Slimmable


@dataclass(frozen=True)
class Head:
    """A linear classifier to go along with a network."""

    probe: Probe
    classes: list[str]
    data: str
    """The evaluation that it comes from."""


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
    known = list_probes(Run(run))
    if not known:
        raise UserError(f"{run} has no classifiers: evaluate it on labelled data, which learns them")
    if name is None and len(known) > 1:
        raise UserError(f"{run} has classifiers for {', '.join(known)}: choose one, head={known[0]!r}")
    if name is not None and name not in known:
        raise UserError(f"{run} has no classifiers for {name!r}, only for {', '.join(known)}")
    name = name or known[0]
    probes = read_probes(Run(run), name)
    return {
        net.canonical(width): Head(
            Probe(weight, bias), probes.classes or [str(number) for number in range(len(bias))], name
        )
        for width, (weight, bias) in probes.linear.items()
    }


def find_accuracy(run: Path, net: Slimmable, width: float, name: str | None = None) -> dict[str, Any] | None:
    """The accuracies of that width on the data of that name, or on the first that has any."""
    for record in read_evaluations(Run(run)).values():
        row = record.at(net, width)
        if name in (None, record.name) and row and (row.linear, row.knn) != (None, None):
            return {"data": record.name, "linear": row.linear, "knn": row.knn}
    return None
