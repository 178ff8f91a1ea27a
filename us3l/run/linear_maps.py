"""Linear maps of features, as safetensors in a run's folder.

eval/NAME.probes.safetensors has the linear classifiers that an evaluation learned, one for each width.
space.safetensors has the same without classes: the maps of all widths into the space that they share.
classifier.safetensors has the one linear layer of all widths that a run was trained with, if it learned from labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor

from us3l.run.evaluations import EvaluationRecord
from us3l.run.folder import Run
from us3l.run.identity import Weights, check_weights
from us3l.run.records import by_width, read_described, write_described
from us3l.system.errors import UserError
from us3l.system.files import checksum
from us3l.width import Width

SUFFIX = ".probes.safetensors"
VERSION, CLASSIFIER_VERSION = 2, 1
Linear = tuple[Tensor, Tensor]
"""Weight (C x D) and bias (C)."""


# One map for each width


@dataclass(frozen=True)
class ProbesHeader:
    """What a file of probes says about them; see `Probes`."""

    classes: list[str] | None
    data: str
    weights: Weights | None = None


@dataclass(frozen=True)
class Probes:
    """Linear maps of one data set."""

    linear: dict[Width, Linear]
    """By width, widest first."""
    classes: list[str] | None
    """None of maps into the shared space."""
    data: str
    """The name of the evaluation that learned them, or of the images that maps were fitted on."""
    weights: Weights | None = None
    """Of the network whose features they map."""
    temperatures: Mapping[Width, float] = field(default_factory=dict)
    """What to divide their outputs by for probabilities, by width, as far as it is known."""
    thresholds: Mapping[Width, float] = field(default_factory=dict)
    """The probability from which on they are sure enough to answer, by width, as far as it is known."""


def probes_file(run: Run, name: str) -> Path:
    """Return where the classifiers of an evaluation are, or would be."""
    return run.evaluation_folder / f"{name}{SUFFIX}"


def list_probes(run: Run) -> list[str]:
    """Return the names of the evaluations that left classifiers."""
    return [path.name.removesuffix(SUFFIX) for path in sorted(run.evaluation_folder.glob(f"*{SUFFIX}"))]


def write_probes(path: Path, probes: Probes) -> None:
    """Write a safetensors file with "WIDTH/weight" and "WIDTH/bias" for each width."""
    tensors: dict[str, Tensor] = {}
    for width, (weight, bias) in probes.linear.items():
        tensors |= {f"{width:g}/weight": weight.float(), f"{width:g}/bias": bias.float()}
        for name, values in (("temperature", probes.temperatures), ("threshold", probes.thresholds)):
            if width in values:
                tensors[f"{width:g}/{name}"] = torch.tensor(values[width], dtype=torch.float32)
    write_described(path, tensors, VERSION, ProbesHeader(probes.classes, probes.data, probes.weights))


def keep_probes(
    run: Run,
    record: EvaluationRecord,
    linear: Mapping[Width, Linear],
    overwrite: bool = False,
    temperatures: Mapping[Width, float] = MappingProxyType({}),
    thresholds: Mapping[Width, float] = MappingProxyType({}),
) -> None:
    """Write the classifiers of an evaluation, with those of its widths that are there already.

    Args:
        run: Whose features they classify.
        record: The evaluation, with its final name.
        linear: The classifiers that it learned, by width.
        overwrite: Leave out what is there.
        temperatures: What to divide their outputs by for probabilities.
        thresholds: The probabilities from which on they are sure enough to answer.
    """
    path = probes_file(run, record.name)
    kept, old_temperatures, old_thresholds = dict[Width, Linear](), dict[Width, float](), dict[Width, float]()
    if path.exists() and not overwrite:
        old = load_probes(path)
        same = old.weights is None or (record.weights and not old.weights.differences(record.weights))
        if same and old.classes == record.classes:
            kept = {row.width: old.linear[row.width] for row in record.widths if row.width in old.linear}
            again = {width for width in kept if width not in linear}
            old_temperatures, old_thresholds = (
                {width: value for width, value in values.items() if width in again}
                for values in (old.temperatures, old.thresholds)
            )
    linear, temperatures = kept | dict(linear), old_temperatures | dict(temperatures)
    thresholds = old_thresholds | dict(thresholds)
    write_probes(path, Probes(linear, record.classes, record.name, record.weights, temperatures, thresholds))


def read_probes(run: Run, name: str) -> Probes:
    """Return the classifiers that an evaluation left; those of other weights than the present are a `UserError`."""
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
    linear = {width: pairs[width] for width in sorted(pairs, reverse=True)}
    for weight, bias in linear.values():
        _check_shapes(weight, bias, header.classes)
        if {weight.dtype, bias.dtype} != {torch.float32}:
            raise ValueError(f"weights are {weight.dtype} and {bias.dtype}")
    temperatures, thresholds = (
        by_width({name: float(tensors[key]) for name in names if (key := f"{name}/{kind}") in tensors})
        for kind in ("temperature", "threshold")
    )
    if not all(0 < value < float("inf") for value in temperatures.values()):
        raise ValueError("a temperature is not above 0")
    if not all(0 <= value <= 1 for value in thresholds.values()):
        raise ValueError("a threshold is not a probability")
    return Probes(linear, **vars(header), temperatures=temperatures, thresholds=thresholds)


def _check_shapes(weight: Tensor, bias: Tensor, classes: list[str] | None) -> None:
    if weight.ndim != 2 or bias.shape != weight.shape[:1] or (classes is not None and len(classes) != len(bias)):
        named = "" if classes is None else f" and {len(classes)} classes"
        raise ValueError(f"weight {tuple(weight.shape)}, bias {tuple(bias.shape)}{named} do not fit together")


# The space that all widths share


def read_space(run: Run) -> Probes | None:
    """Return the maps that were fitted to the run's present weights, if any; those of others are a `UserError`."""
    if not run.space.exists():
        return None
    space = load_probes(run.space)
    check_weights(run.space, space.weights, run.weights, "remove it, and embed again")
    return space


def keep_space(run: Run, maps: Mapping[Width, Linear], data: str) -> None:
    """Add the maps of some widths to those that are there.

    Args:
        run: Whose widths they are.
        maps: The weight and bias of each.
        data: What they were fitted on.
    """
    there = read_space(run)
    write_probes(run.space, Probes({**(there.linear if there else {}), **maps}, None, data, run.weights))


# The classifier that a run was trained with


@dataclass(frozen=True)
class ClassifierHeader:
    """What the file says about its classifier; see `ElasticClassifier`."""

    classes: list[str]
    data: str


@dataclass(frozen=True)
class ElasticClassifier:
    """A linear layer for all widths: features of a narrow network take its leading columns."""

    weight: Tensor
    """Classes x features of width 1."""
    bias: Tensor
    classes: list[str]
    data: str
    """The images that it was trained on, by their name."""

    def at(self, features: int) -> Linear:
        """Return weight and bias for this many features."""
        return self.weight[:, :features], self.bias


def write_classifier(path: Path, classifier: ElasticClassifier) -> None:
    """Write the file."""
    header = ClassifierHeader(classifier.classes, classifier.data)
    write_described(path, {"weight": classifier.weight, "bias": classifier.bias}, CLASSIFIER_VERSION, header)


def read_classifier(run: Run) -> ElasticClassifier:
    """Return the classifier of a run's present model.

    Raises:
        UserError: It has none, or one that belongs to another model.
    """
    path = run.classifier
    if not path.exists():
        raise UserError(f"{run.folder} has no classifier of its own: train it with labels, `method='us-net'`")
    remedy = "a run that learns from labels writes it"
    classifier = read_described(path, CLASSIFIER_VERSION, ClassifierHeader, _classifier, remedy)
    if run.promised.get("classifier") != checksum(path):
        raise UserError(f"{path} belongs to another model than {run.model}")
    return classifier


def _classifier(header: ClassifierHeader, tensors: dict[str, Tensor]) -> ElasticClassifier:
    weight, bias = tensors["weight"], tensors["bias"]
    _check_shapes(weight, bias, header.classes)
    if not all(tensor.is_floating_point() for tensor in (weight, bias)):
        raise ValueError("it does not hold numbers with fractions")
    return ElasticClassifier(weight.float(), bias.float(), header.classes, header.data)
