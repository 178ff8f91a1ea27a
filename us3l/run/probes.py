"""The linear classifiers that evaluation learned, one for each width, in eval/NAME.probes.safetensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor

from us3l.run.described import read_described, write_described
from us3l.run.evaluations import EvaluationRecord
from us3l.run.folder import Run
from us3l.run.records import by_width
from us3l.run.weights import Weights, check_weights
from us3l.width import Width

SUFFIX = ".probes.safetensors"
VERSION = 2
Linear = tuple[Tensor, Tensor]
"""Weight (C x D) and bias (C)."""


@dataclass(frozen=True)
class ProbesHeader:
    """What a file of probes says about them; see `Probes`."""

    classes: list[str] | None
    data: str
    weights: Weights | None


@dataclass(frozen=True)
class Probes:
    """Classifiers of one data set, by width, widest first."""

    linear: dict[Width, Linear]
    classes: list[str] | None
    data: str
    """The name of the evaluation that learned them."""
    weights: Weights | None = None
    """Of the network whose features they classify."""
    temperatures: Mapping[Width, float] = field(default_factory=dict)
    """What to divide their outputs by for probabilities, by width, as far as it is known."""


def probes_file(run: Run, name: str) -> Path:
    return run.evaluation_folder / f"{name}{SUFFIX}"


def list_probes(run: Run) -> list[str]:
    """The names of the evaluations that left classifiers."""
    return [path.name.removesuffix(SUFFIX) for path in sorted(run.evaluation_folder.glob(f"*{SUFFIX}"))]


def write_probes(path: Path, probes: Probes) -> None:
    """Write a safetensors file with "WIDTH/weight" and "WIDTH/bias" for each width."""
    tensors: dict[str, Tensor] = {}
    for width, (weight, bias) in probes.linear.items():
        tensors |= {f"{width:g}/weight": weight.float(), f"{width:g}/bias": bias.float()}
        if width in probes.temperatures:
            tensors[f"{width:g}/temperature"] = torch.tensor(probes.temperatures[width], dtype=torch.float32)
    write_described(path, tensors, VERSION, ProbesHeader(probes.classes, probes.data, probes.weights))


def keep_probes(
    run: Run,
    record: EvaluationRecord,
    linear: Mapping[Width, Linear],
    overwrite: bool = False,
    temperatures: Mapping[Width, float] = MappingProxyType({}),
) -> None:
    """Write the classifiers of an evaluation, with those of its widths that are there already.

    Args:
        record: the evaluation, settled.
        linear: the classifiers that it learned, by width.
        overwrite: leave out what is there.
        temperatures: what to divide their outputs by for probabilities.
    """
    path = probes_file(run, record.name)
    kept, warm = dict[Width, Linear](), dict[Width, float]()
    if path.exists() and not overwrite:
        old = load_probes(path)
        if old.classes == record.classes and (
            old.weights is None or (record.weights and not old.weights.differences(record.weights))
        ):
            kept = {row.width: old.linear[row.width] for row in record.widths if row.width in old.linear}
            warm = {
                width: old.temperatures[width] for width in kept if width in old.temperatures and width not in linear
            }
    probes = Probes(kept | dict(linear), record.classes, record.name, record.weights, warm | dict(temperatures))
    write_probes(path, probes)


def read_probes(run: Run, name: str) -> Probes:
    """The classifiers that an evaluation of the run's present weights left; those of others are a `UserError`."""
    path = probes_file(run, name)
    probes = load_probes(path)
    check_weights(path, probes.weights, run.weights, "evaluate again, with overwrite")
    return probes


def load_probes(path: str | Path) -> Probes:
    """Return what a file holds, whichever network it belongs to."""
    return read_described(Path(path), VERSION, ProbesHeader, _probes, "us3l evaluate writes it")


def _probes(header: ProbesHeader, tensors: Mapping[str, Tensor]) -> Probes:
    names = {name.split("/")[0] for name in tensors}
    pairs = by_width({name: (tensors[f"{name}/weight"], tensors[f"{name}/bias"]) for name in names})
    linear = {width: _checked(*pairs[width], header.classes) for width in sorted(pairs, reverse=True)}
    temperatures = by_width({name: float(tensors[key]) for name in names if (key := f"{name}/temperature") in tensors})
    if not all(0 < value < float("inf") for value in temperatures.values()):
        raise ValueError("a temperature is not above 0")
    return Probes(linear, header.classes, header.data, header.weights, temperatures)


def _checked(weight: Tensor, bias: Tensor, classes: list[str] | None) -> Linear:
    fits = weight.ndim == 2 and bias.shape == weight.shape[:1] and (classes is None or len(classes) == bias.numel())
    if not fits:
        raise ValueError(f"weight {tuple(weight.shape)} and bias {tuple(bias.shape)} do not fit together")
    if {weight.dtype, bias.dtype} != {torch.float32}:
        raise ValueError(f"weights are {weight.dtype} and {bias.dtype}")
    return weight, bias
