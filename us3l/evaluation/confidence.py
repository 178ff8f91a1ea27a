"""How sure a classifier is: probabilities that mean what they say, and what abstaining is worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

LOWEST, HIGHEST = 0.05, 20.0
COVERAGES = (1.0, 0.9, 0.8, 0.5)
BINS = 15


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


@dataclass(frozen=True)
class Confidence:
    """What the probabilities of a classifier are worth, on labelled images."""

    accuracy: dict[float, float]
    """In percent, of the share of the images that it is surest of; by that share."""
    threshold: dict[float, float]
    """The probability from which on it answers, to answer that share."""
    calibration_error: float
    """The mean difference of its probability and its accuracy, in points, over bins of the probability."""


def confidence(probabilities: Tensor, labels: Tensor, coverages: Sequence[float] = COVERAGES) -> Confidence:
    """Accuracy against coverage.

    Args:
        probabilities: N x C.
        labels: N.
        coverages: Shares of the images to answer for, above 0 and at most 1.
    """
    sure, said = probabilities.max(1)
    right = (said == labels).double()
    order = sure.argsort(descending=True, stable=True)
    accuracy, threshold = {}, {}
    for coverage in coverages:
        answered = order[: max(1, round(coverage * len(order)))]
        accuracy[coverage] = 100 * right[answered].mean().item()
        threshold[coverage] = sure[answered[-1]].item()
    bins = (sure.double() * BINS).long().clamp(max=BINS - 1)
    gaps = [(sure.double()[bins == one].sum() - right[bins == one].sum()).abs() for one in bins.unique()]
    return Confidence(accuracy, threshold, 100 * (torch.stack(gaps).sum() / len(labels)).item())
