"""What evaluation found at each width: accuracies with their uncertainty, and their JSON form."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from statistics import fmean, stdev
from typing import Any

from torch import Tensor

from us3l.errors import UserError
from us3l.files import finite, parse_json


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
    finetuned: float | None = None
    knn_top5: float | None = None
    linear_top5: float | None = None
    finetuned_top5: float | None = None


@dataclass(frozen=True)
class Score:
    """How one classifier did on the test images, in percent."""

    top1: float
    top5: float | None
    """None with five classes or fewer."""
    low: float
    high: float
    """The 95 % interval of top1 (Wilson's), for the number of test images."""
    per_class: tuple[float | None, ...]
    """Top-1 for each class; None where it has no test image."""
    deviation: float | None = None
    """The standard deviation of top1 over seeds, when there were several."""
    seeds: int = 1


@dataclass(frozen=True)
class FewLabels:
    """The linear probe of one width, learned from a share of the labels."""

    width: float
    share: float
    images: int
    linear: Score


def score(scores: Tensor, labels: Tensor, num_classes: int | None = None) -> Score:
    """Judge class scores (N x C).

    >>> import torch
    >>> found = score(torch.tensor([[0.9, 0.1], [0.8, 0.2]]), torch.tensor([0, 1]))
    >>> found.top1, found.per_class, round(found.low, 1), round(found.high, 1)
    (50.0, (100.0, 0.0), 9.5, 90.5)
    """
    top1 = percent_correct(scores, labels)
    classes = num_classes or scores.shape[1]
    hits = scores.argmax(1) == labels
    counts = labels.bincount(minlength=classes).tolist()
    correct = labels[hits].bincount(minlength=classes).tolist()
    per_class = tuple(100 * right / count if count else None for right, count in zip(correct, counts, strict=True))
    top5 = None
    if classes > 5:
        best = scores.topk(5)
        # A class that no other is below is not a guess: kNN's neighbours vote for a few classes only.
        guessed = best.values > scores.amin(1, keepdim=True)
        among_best = (guessed & (best.indices == labels[:, None])).any(1)
        top5 = 100 * (hits | among_best).sum().item() / len(labels)
    return Score(top1, top5, *wilson(top1, len(labels)), per_class)


def mean_score(found: Sequence[Score], images: int) -> Score:
    """The mean over seeds; the interval is the mean's for that number of test images."""
    if len(found) == 1:
        return found[0]
    top1 = fmean(one.top1 for one in found)
    top5 = None if found[0].top5 is None else fmean(one.top5 or 0.0 for one in found)
    columns = zip(*(one.per_class for one in found), strict=True)
    per_class = tuple(None if None in column else fmean(value or 0.0 for value in column) for column in columns)
    deviation = stdev(one.top1 for one in found)
    return Score(top1, top5, *wilson(top1, images), per_class, deviation, len(found))


def wilson(percent: float, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share of `count` images, in percent.

    >>> [round(bound, 2) for bound in wilson(50.0, 10_000)]
    [49.02, 50.98]
    """
    z, share = 1.959964, percent / 100
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    reach = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(0.0, 100 * (middle - reach)), min(100.0, 100 * (middle + reach))


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
            rows = parse_json(rows)
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
        raise UserError(f"results entry {index}: unknown {', '.join(unknown):.200}; known are {', '.join(names)}")
    for name in names:
        value, is_cost = row.get(name), name in ("width", "params", "macs")
        if value is None and not is_cost:
            continue
        kind = int if name in ("params", "macs") else (int, float)
        # bool is an int to Python, and json reads NaN and Infinity: neither is a measurement.
        if isinstance(value, bool) or not isinstance(value, kind) or not finite(value) or (is_cost and value <= 0):
            wanted = "a whole number" if kind is int else "a number"
            raise UserError(
                f"results entry {index}: {name} must be {wanted}{' above 0' if is_cost else ''}, got {value!r:.50}"
            )
    return WidthResult(**row)
