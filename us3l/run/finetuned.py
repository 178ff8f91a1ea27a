"""The networks that fine-tuning made, one for each width, in eval/NAME.finetuned-WIDTHx.safetensors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from us3l.run.described import read_described, write_described
from us3l.run.evaluations import EvaluationRecord, evaluation_file
from us3l.run.folder import Run
from us3l.run.weights import Weights, check_weights
from us3l.width import Width

VERSION = 1
NAME = re.compile(r"(?P<name>.+)\.finetuned-(?P<width>[0-9.ed-]+)x\.safetensors")


@dataclass(frozen=True)
class Finetuned:
    """A network of one width with its last linear layer: its tensors, and what it was trained from and for."""

    width: Width
    tensors: dict[str, Tensor]
    """The state dict of a sequence of the network and the linear layer."""
    classes: list[str]
    data: str
    """The name of the evaluation that trained it."""
    weights: Weights | None
    """Of the slimmable network that it was carved from."""


def finetuned_file(run: Run, name: str, width: Width) -> Path:
    """Where the network of a width is kept."""
    return evaluation_file(run, name).with_name(f"{name}.finetuned-{width:g}x.safetensors")


def list_finetuned(run: Run) -> dict[str, list[Width]]:
    """The names of the evaluations that left networks, and the widths of these."""
    found: dict[str, list[Width]] = {}
    for path in sorted(run.evaluation_folder.glob("*.safetensors")):
        if match := NAME.fullmatch(path.name):
            found.setdefault(match["name"], []).append(Width(match["width"]))
    return found


def write_finetuned(run: Run, record: EvaluationRecord, width: Width, state: Mapping[str, Tensor]) -> Path:
    """Write a network.

    Args:
        run: Whose network it was carved from.
        record: The evaluation that trained it, settled.
        width: The network's.
        state: Its state dict.
    """
    path = finetuned_file(run, record.name, width)
    described = {
        "version": VERSION,
        "width": width,
        "classes": record.classes
        or [str(number) for number in range(record.identity.classes if record.identity else 0)],
        "data": record.name,
        "weights": asdict(record.weights) if record.weights else None,
    }
    write_described(path, state, described)
    return path


def read_finetuned(run: Run, name: str, width: Width) -> Finetuned:
    """A network that was carved from the run's present weights; one of others is a `UserError`."""
    path = finetuned_file(run, name, width)
    remedy = f"evaluate {run.folder} with the protocol 'finetune'"
    finetuned = read_described(path, _finetuned, "network", remedy)
    check_weights(path, finetuned.weights, run.weights, "evaluate again, with overwrite")
    return finetuned


def _finetuned(described: dict[str, Any], tensors: dict[str, Tensor]) -> Finetuned:
    if described["version"] != VERSION:
        raise ValueError(f"it has format {described['version']!r:.40}, this us3l reads {VERSION}: use a newer one")
    width, classes, data = Width.from_plain(described["width"]), described["classes"], described["data"]
    texts = isinstance(classes, list) and all(isinstance(one, str) for one in [*classes, data])
    if not texts:
        raise ValueError("its classes or its data's name are not what they should be")
    return Finetuned(width, tensors, classes, data, Weights.of(described["weights"]))
