"""The classifier that a run was trained with, if it learned from labels: classifier.safetensors in its folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

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


@dataclass(frozen=True)
class ClassifierHeader:
    """What the file says about its classifier; see `ElasticClassifier`."""

    classes: list[str]
    data: str


def write_classifier(path: Path, classifier: ElasticClassifier) -> None:
    """Write the file."""
    header = ClassifierHeader(classifier.classes, classifier.data)
    write_described(path, {"weight": classifier.weight, "bias": classifier.bias}, VERSION, header)


def read_classifier(run: Run) -> ElasticClassifier:
    """Return the classifier of a run's present model.

    Raises:
        UserError: It has none, or one that belongs to another model.
    """
    path = run.classifier
    if not path.exists():
        raise UserError(f"{run.folder} has no classifier of its own: train it with labels, `method='us-net'`")
    remedy = "a run that learns from labels writes it"
    classifier = read_described(path, VERSION, ClassifierHeader, _classifier, remedy)
    if run.promised.get("classifier") != checksum(path):
        raise UserError(f"{path} belongs to another model than {run.model}")
    return classifier


def _classifier(header: ClassifierHeader, tensors: dict[str, Tensor]) -> ElasticClassifier:
    weight, bias = tensors["weight"], tensors["bias"]
    if weight.ndim != 2 or bias.shape != weight.shape[:1] or len(header.classes) != len(bias):
        raise ValueError(
            f"weight {tuple(weight.shape)}, bias {tuple(bias.shape)} and {len(header.classes)} classes do not fit"
        )
    if not all(tensor.is_floating_point() for tensor in (weight, bias)):
        raise ValueError("it does not hold numbers with fractions")
    return ElasticClassifier(weight.float(), bias.float(), header.classes, header.data)
