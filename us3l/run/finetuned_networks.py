"""The networks that fine-tuning made, one for each width, in eval/NAME.finetuned-WIDTHx.safetensors."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from us3l.run.evaluations import EVALUATIONS, EvaluationRecord
from us3l.run.folder import Run
from us3l.run.identity import Weights, check_weights
from us3l.run.records import read_described, write_described
from us3l.slimmable import Slimmable
from us3l.system.errors import UserError
from us3l.width import Width

VERSION = 1
NAME = re.compile(r"(?P<name>.+)\.finetuned-(?P<width>[0-9.ed-]+)x\.safetensors")


@dataclass(frozen=True)
class FinetunedHeader:
    """What a file says about its network: what it was trained from and for."""

    width: Width
    classes: list[str]
    data: str
    """The name of the evaluation that trained it."""
    weights: Weights | None
    """Of the slimmable network that it was carved from."""


@dataclass(frozen=True)
class Finetuned(FinetunedHeader):
    """A network of one width with its last linear layer."""

    tensors: dict[str, Tensor]
    """The state dict of a sequence of the network and the linear layer."""


def finetuned_file(run: Run, name: str, width: Width) -> Path:
    """Where the network of a width is kept."""
    return EVALUATIONS.file(run, name).with_name(f"{name}.finetuned-{width:g}x.safetensors")


def list_finetuned(run: Run) -> dict[str, list[Width]]:
    """The names of the evaluations that left networks, and the widths of these."""
    networks: dict[str, list[Width]] = {}
    for path in sorted(run.evaluation_folder.glob("*.safetensors")):
        if match := NAME.fullmatch(path.name):
            networks.setdefault(match["name"], []).append(Width(match["width"]))
    return networks


def write_finetuned(run: Run, record: EvaluationRecord, width: Width, state: Mapping[str, Tensor]) -> Path:
    """Write a network.

    Args:
        run: Whose network it was carved from.
        record: The evaluation that trained it, settled.
        width: The network's.
        state: Its state dict.
    """
    path = finetuned_file(run, record.name, width)
    numbers = range(record.identity.classes if record.identity else 0)
    classes = record.classes or [str(number) for number in numbers]
    write_described(path, state, VERSION, FinetunedHeader(width, classes, record.name, record.weights))
    return path


def read_finetuned(run: Run, name: str, width: Width) -> Finetuned:
    """Return a network that was carved from the run's present weights; one of others is a `UserError`."""
    path = finetuned_file(run, name, width)
    remedy = f"evaluate {run.folder} with the protocol 'finetune'"

    def build(header: FinetunedHeader, tensors: dict[str, Tensor]) -> Finetuned:
        return Finetuned(**vars(header), tensors=tensors)

    finetuned = read_described(path, VERSION, FinetunedHeader, build, remedy)
    check_weights(path, finetuned.weights, run.weights, "evaluate again, with overwrite")
    return finetuned


def find_finetuned(run: Run, net: Slimmable, width: Width, name: str | None = None) -> Finetuned:
    """Return what fine-tuning left for the network that a width means.

    Args:
        run: The run's folder.
        net: Its slimmable network.
        width: Any width that means the same network as the one that was fine-tuned.
        name: Of the evaluation, needed if there are several.
    """
    kept = list_finetuned(run)
    if not kept:
        raise UserError(f"{run.folder} has no fine-tuned networks: evaluate it with the protocol 'finetune'")
    name = choose_evaluation(run, kept, name, "networks fine-tuned as", "name")
    same = [each for each in kept[name] if net.canonical(each) == net.canonical(width)]
    if not same:
        widths = ", ".join(f"{each:g}" for each in sorted(kept[name], reverse=True))
        raise UserError(f"{run.folder}: {name} was not fine-tuned at width {width:g}, only at {widths}")
    return read_finetuned(run, name, same[0])


def choose_evaluation(run: Run, names: Collection[str], name: str | None, what: str, setting: str) -> str:
    """Return the name asked for, or the only one there is.

    Args:
        run: Whose evaluations they are.
        names: The names of those that left something; at least one.
        name: The one asked for.
        what: They left, for errors.
        setting: That names one of them, for errors.
    """
    there = ", ".join(names)
    if name is None and len(names) > 1:
        raise UserError(f"{run.folder} has {what} {there}: choose one, `{setting}={next(iter(names))!r}`")
    if name is not None and name not in names:
        raise UserError(f"{run.folder} has no {what} {name!r}, only {there}")
    return name or next(iter(names))


def finetuned_network(run: Run, net: Slimmable, width: Width, name: str | None = None) -> nn.Module:
    """Return the network that fine-tuning made of a width, in eval mode: images to logits.

    Args:
        run: The run's folder.
        net: Its slimmable network.
        width: Any width that means the same network as the one that was fine-tuned.
        name: Of the evaluation, needed if there are several.
    """
    kept = find_finetuned(run, net, width, name)
    try:
        classes, features = kept.tensors["1.weight"].shape
        whole = nn.Sequential(net.carve(kept.width), nn.Linear(features, classes))
        if classes != len(kept.classes):
            raise ValueError(f"{classes} outputs for {len(kept.classes)} classes")
        whole.load_state_dict(kept.tensors)
    except (KeyError, ValueError, RuntimeError) as error:
        path = finetuned_file(run, kept.data, kept.width)
        raise UserError(f"{path} does not fit the network: {str(error).splitlines()[0]}") from None
    return whole.eval()
