"""Accuracies with their uncertainty; how sure a classifier is, and what abstaining is worth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import torch
from torch import Tensor
from torch.nn import functional as F

from us3l.run.evaluations import Score
from us3l.system.errors import UserError

LOWEST, HIGHEST = 0.05, 20.0
RIGHT = 0.95
"""The share of its answers that a classifier should be right about, unless it is told what to be sure of."""
COVERAGES = (1.0, 0.9, 0.8, 0.5)
BINS = 15


def score(scores: Tensor, labels: Tensor, num_classes: int | None = None) -> Score:
    """Judge class scores (N x C).

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
    return Score(top1, top5, *wilson(top1, len(labels)), per_class, images=len(labels))


def mean_score(found: Sequence[Score], images: int) -> Score:
    """The mean over seeds; the interval is the mean's for that number of test images."""
    if len(found) == 1:
        return found[0]
    top1 = fmean(one.top1 for one in found)
    top5 = None if found[0].top5 is None else fmean(one.top5 or 0.0 for one in found)
    columns = zip(*(one.per_class for one in found), strict=True)
    per_class = tuple(None if None in column else fmean(value or 0.0 for value in column) for column in columns)
    deviation = stdev(one.top1 for one in found)
    return Score(top1, top5, *wilson(top1, images), per_class, deviation, len(found), images)


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

    >>> percent_correct(torch.tensor([[0.9, 0.1], [0.8, 0.2]]), torch.tensor([0, 1]))
    50.0
    """
    if len(labels) == 0 or len(scores) != len(labels):
        raise UserError(
            f"accuracy needs one label for every test image, got {len(scores)} images, {len(labels)} labels"
        )
    return 100 * (scores.argmax(1) == labels).sum().item() / len(labels)


# Confidence


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """What to divide logits by, so that the probabilities are likeliest: Guo et al. (2017).

    The loss has one minimum in the logarithm of 1 / T; it is found by golden section.

    Args:
        logits: N x C, of images that the classifier has not learned from.
        labels: N.

    >>> logits = torch.tensor([[9.0, 0.0], [9.0, 0.0], [9.0, 0.0], [9.0, 0.0]])
    >>> round(fit_temperature(logits, torch.tensor([0, 0, 0, 1])), 2)  # sure, but right in three of four cases
    8.19
    """
    logits = logits.double()

    def loss(log_temperature: float) -> float:
        return F.cross_entropy(logits / torch.e**log_temperature, labels).item()

    low, high = torch.tensor([LOWEST, HIGHEST]).log().tolist()
    ratio = (5**0.5 - 1) / 2
    for _ in range(40):
        one, other = high - ratio * (high - low), low + ratio * (high - low)
        low, high = (low, other) if loss(one) <= loss(other) else (one, high)
    return float(torch.e ** ((low + high) / 2))


def fit_threshold(sure: Tensor, right: Tensor, share: float = RIGHT) -> float:
    """Return the lowest probability from which on that share of the answers is right; 1 if there is none.

    Args:
        sure: N, the probability of the most probable class, of images that the classifier has not learned from.
        right: N, whether it is the right one.
        share: Of the answers.

    >>> round(fit_threshold(torch.tensor([0.9, 0.8, 0.7]), torch.tensor([True, True, False])), 2)
    0.8
    """
    order = sure.argsort(descending=True, stable=True)
    sure, right = sure[order], right[order].double()
    good = right.cumsum(0) >= share * torch.arange(1, len(right) + 1, device=right.device)
    good[:-1] &= sure[:-1] > sure[1:]  # images of one probability are answered together
    return float(sure[good][-1]) if good.any() else 1.0


@dataclass(frozen=True)
class Confidence:
    """What the probabilities of a classifier are worth, on labelled images."""

    images: int
    """How many there were."""
    accuracy: dict[float, float]
    """In percent, of the share of the images that it is surest of; by that share."""
    threshold: dict[float, float]
    """The probability from which on it answers, to answer that share."""
    calibration_error: float
    """The mean difference of its probability and its accuracy, in points, over bins of the probability."""


def confidence(sure: Tensor, right: Tensor, coverages: Sequence[float] = COVERAGES) -> Confidence:
    """Return accuracy against coverage.

    Args:
        sure: N, the probability of the most probable class.
        right: N, whether it is the right one.
        coverages: Shares of the images to answer for, above 0 and at most 1.
    """
    right = right.double()
    order = sure.argsort(descending=True, stable=True)
    accuracy, threshold = {}, {}
    for coverage in coverages:
        answered = order[: max(1, round(coverage * len(order)))]
        accuracy[coverage] = 100 * right[answered].mean().item()
        threshold[coverage] = sure[answered[-1]].item()
    bins = (sure.double() * BINS).long().clamp(max=BINS - 1)
    gaps = [(sure.double()[bins == number].sum() - right[bins == number].sum()).abs() for number in bins.unique()]
    return Confidence(len(right), accuracy, threshold, 100 * (torch.stack(gaps).sum() / len(right)).item())
