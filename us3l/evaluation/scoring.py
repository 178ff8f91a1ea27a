"""Accuracies with their uncertainty."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from torch import Tensor

from us3l.run.evaluations import Score
from us3l.system.errors import UserError


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
