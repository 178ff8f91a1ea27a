"""What evaluation found at each width, and its JSON form."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from torch import Tensor

from us3l.errors import UserError


@dataclass(frozen=True)
class WidthResult:
    """One width: its cost, its accuracies in percent, and those of the same network untrained (None: not measured)."""

    width: float
    params: int
    macs: int
    knn: float | None = None
    linear: float | None = None
    knn_untrained: float | None = None
    linear_untrained: float | None = None


def percent_correct(scores: Tensor, labels: Tensor) -> float:
    """Top-1 accuracy in percent of class scores (N x C).

    >>> import torch
    >>> percent_correct(torch.tensor([[0.9, 0.1], [0.8, 0.2]]), torch.tensor([0, 1]))
    50.0
    """
    if len(labels) == 0 or len(scores) != len(labels):
        raise UserError(
            f"accuracy needs one label for every test image, got {len(scores)} images, {len(labels)} labels"
        )
    return 100 * (scores.argmax(1) == labels).sum().item() / len(labels)


def to_json(results: Sequence[WidthResult]) -> list[dict[str, Any]]:
    """Plain dictionaries, ready for `json.dump`."""
    return [asdict(result) for result in results]


def from_json(rows: object) -> list[WidthResult]:
    """The results in parsed JSON, or in the JSON text itself; anything else is a `UserError`.

    >>> from_json('[{"width": 0.5, "params": 10, "macs": 20, "knn": 60.0}]')[0].knn
    60.0
    """
    if isinstance(rows, str | bytes):
        try:
            rows = json.loads(rows)
        except ValueError as error:
            raise UserError(f"results are not valid JSON ({error}); evaluate again to rewrite them") from None
    if not isinstance(rows, list):
        raise UserError(f"results must be a list with one entry a width, not {type(rows).__name__}")
    return [_result(row, index) for index, row in enumerate(rows)]


def _result(row: object, index: int) -> WidthResult:
    if not isinstance(row, dict):
        raise UserError(f"results entry {index}: expected a dictionary, got {type(row).__name__}")
    names = [field.name for field in fields(WidthResult)]
    if unknown := sorted(map(str, row.keys() - set(names))):
        raise UserError(f"results entry {index}: unknown {', '.join(unknown)}; known are {', '.join(names)}")
    for name in names:
        value, is_cost = row.get(name), name in ("width", "params", "macs")
        if value is None and not is_cost:
            continue
        kind = int if name in ("params", "macs") else (int, float)
        # bool is an int to Python, and json reads NaN and Infinity: neither is a measurement.
        if (
            isinstance(value, bool)
            or not isinstance(value, kind)
            or not math.isfinite(value)
            or (is_cost and value <= 0)
        ):
            wanted = "a whole number" if kind is int else "a number"
            raise UserError(
                f"results entry {index}: {name} must be {wanted}{' above 0' if is_cost else ''}, got {value!r}"
            )
    return WidthResult(**row)
