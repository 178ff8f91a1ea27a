"""The classifier that a run was trained with, if it learned from labels: classifier.safetensors in its folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from us3l.run.described import read_described, write_described
from us3l.run.folder import Run
from us3l.system.errors import UserError
from us3l.system.files import checksum

VERSION = 1


@dataclass(frozen=True)
class ElasticClassifier:
    """A linear layer for all widths: features of a narrow network take its leading columns."""

    weight: Tensor
    """Classes x features of width 1."""
    bias: Tensor
    classes: list[str]
    data: str
    """The images that it was trained on, by their name."""

    def at(self, features: int) -> tuple[Tensor, Tensor]:
        """Weight and bias for this many features."""
        return self.weight[:, :features], self.bias


def write_classifier(path: Path, classifier: ElasticClassifier) -> None:
    """Write the file."""
    described = {"version": VERSION, "classes": classifier.classes, "data": classifier.data}
    write_described(path, {"weight": classifier.weight, "bias": classifier.bias}, described)


def read_classifier(run: Run) -> ElasticClassifier:
    """That of a run's present model.

    Args:
        run: The run's folder.

    Raises:
        UserError: It has none, or one that belongs to another model.
    """
    path = run.classifier
    if not path.exists():
        raise UserError(f"{run.folder} has no classifier of its own: train it with labels, `method='us-net'`")
    classifier = read_described(path, _classifier, "classifier", "a run that learns from labels writes it")
    if run.promised.get("classifier") != checksum(path):
        raise UserError(f"{path} belongs to another model than {run.model}")
    return classifier


def _classifier(described: dict[str, Any], tensors: dict[str, Tensor]) -> ElasticClassifier:
    if described["version"] != VERSION:
        raise ValueError(f"it has format {described['version']!r:.40}, this us3l reads {VERSION}: use a newer one")
    weight, bias, classes, data = tensors["weight"], tensors["bias"], described["classes"], described["data"]
    if not isinstance(classes, list) or not all(isinstance(one, str) for one in [*classes, data]):
        raise ValueError("the names of its classes or of its data are not text")
    if weight.ndim != 2 or bias.shape != weight.shape[:1] or len(classes) != len(bias):
        raise ValueError(
            f"weight {tuple(weight.shape)}, bias {tuple(bias.shape)} and {len(classes)} classes do not fit"
        )
    if not all(tensor.is_floating_point() for tensor in (weight, bias)):
        raise ValueError("it does not hold numbers with fractions")
    return ElasticClassifier(weight.float(), bias.float(), classes, data)
