"""What the built-in network learns in a step: which widths at which sizes, from what loss, at what rate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

Subnet = tuple[float, int]
"""A width and an image size in pixels."""
NARROW = 0.25


@dataclass(frozen=True)
class Recipe:
    """Settings of the training; a checkpoint keeps them."""

    batch: int = 32
    rate: float = 0.002
    """Learning rate of AdamW after the warm-up. It stays there: a copy of the network is cooled down to be used."""
    wide_rate: float = 0.5
    full_rate: float = 0.25
    """Shares of that rate for widths above 0.5 and for the full width, which know most of it already."""
    warmup: int = 100
    """Steps until the learning rate is reached."""
    decay: float = 0.01
    """Weight decay, of convolutions only."""
    averaging: float = 0.995
    """Of the average of weights over steps: the share that stays in each step."""
    cosine: float = 1.0
    similarity: float = 0.2
    classes: float = 0.25
    """Weights of the three losses: see `distillation`."""
    sizes: tuple[int, ...] = (96, 128, 160)
    shares: tuple[float, ...] = (0.6, 0.3, 0.1)
    """How often each size is drawn for narrow widths; wide ones get the first two. Crops show things larger than whole
    images do: 96 pixels in training are about 128 in use."""
    wide_every: int = 2
    full_every: int = 4
    """A width above 0.5 and the full width learn once in so many steps."""
    seed: int = 0

    def draw(self, step: int) -> list[Subnet]:
        """Return the sub-networks that learn in a step, narrowest first."""
        draw = np.random.default_rng((self.seed, step, 1))
        small, small_shares = self.sizes[:2], np.array(self.shares[:2]) / sum(self.shares[:2])
        subnets = [
            (NARROW, int(draw.choice(self.sizes, p=self.shares))),
            (round(float(draw.uniform(NARROW, 0.5)), 3), int(draw.choice(self.sizes, p=self.shares))),
        ]
        if step % self.wide_every == 0:
            subnets.append((round(float(draw.uniform(0.5, 1.0)), 3), int(draw.choice(small, p=small_shares))))
        if step % self.full_every == 1:
            subnets.append((1.0, int(draw.choice(small, p=small_shares))))
        return subnets

    def rate_at(self, step: int, cooling: tuple[int, int] | None = None) -> float:
        """Return the learning rate of a step; while cooling, it falls to zero from the first step to the last."""
        rate = self.rate * min(1.0, (step + 1) / self.warmup)
        if cooling is not None:
            first, last = cooling
            rate *= max(0.0, (last - step) / (last - first))
        return rate

    def rate_share(self, width: float) -> float:
        """Return the share of the learning rate at which a width learns."""
        return 1.0 if width <= 0.5 else self.wide_rate if width < 1 else self.full_rate


def subnet_name(width: float, size: int) -> str:
    """Return the name of a width at a size.

    >>> subnet_name(0.5, 128)
    '0.5x@128'
    """
    return f"{width:g}x@{size}"


def distillation(recipe: Recipe, features: Tensor, target: Tensor, classifier: tuple[Tensor, Tensor]) -> Tensor:
    """Return the loss of features against the teacher's: their angle, their similarities to the other images of the
    batch, and what the teacher's own classifier makes of them.

    The classifier is fixed. It weighs the directions of the features by what they say about ImageNet's classes.
    """
    ours, theirs = F.normalize(features, dim=1), F.normalize(target, dim=1)
    loss = recipe.cosine * (1 - (ours * theirs).sum(dim=1).mean())
    if recipe.similarity:
        loss = loss + recipe.similarity * similarity_loss(ours, theirs)
    if recipe.classes:
        weight, bias = classifier
        expected = F.linear(target, weight, bias).log_softmax(dim=1)
        predicted = F.linear(features, weight, bias).log_softmax(dim=1)
        loss = loss + recipe.classes * F.kl_div(predicted, expected, reduction="batchmean", log_target=True)
    return loss


def similarity_loss(ours: Tensor, theirs: Tensor, temperature: float = 0.05) -> Tensor:
    """Return the divergence of the similarities of images, as the two networks see them."""
    own = torch.eye(len(ours), dtype=torch.bool)
    predicted = (ours @ ours.T / temperature).masked_fill(own, -1e4).log_softmax(dim=1)
    expected = (theirs @ theirs.T / temperature).masked_fill(own, -1e4).log_softmax(dim=1)
    return F.kl_div(predicted, expected, reduction="batchmean", log_target=True)
