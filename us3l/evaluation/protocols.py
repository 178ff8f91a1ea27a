"""How classifiers are trained by gradient descent, as values; without torch, so that the command line can read them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from us3l.data.spec import Views
from us3l.errors import UserError

Protocol = Literal["fast", "paper", "finetune"]
LARGE = 64
"""From this image size on the paper's settings for ImageNet hold, below it those for CIFAR."""


@dataclass(frozen=True)
class Training:
    """A classifier's training: SGD with momentum 0.9 or LARS, on random crops and flips."""

    optimiser: Literal["sgd", "lars"]
    lr: float
    epochs: int
    batch_size: int
    weight_decay: float
    schedule: Literal["steps", "cosine"]
    """Steps: a tenth of the rate at 60 % of the epochs, a hundredth at 80 %. Both change it once an epoch."""
    crop_scale: tuple[float, float]

    def __post_init__(self) -> None:
        if not self.lr > 0 or self.epochs < 1 or self.batch_size < 1 or not self.weight_decay >= 0:
            raise UserError(
                f"training needs lr > 0, epochs >= 1, batch size >= 1 and weight decay >= 0; got {self.lr:g}, "
                f"{self.epochs}, {self.batch_size}, {self.weight_decay:g}"
            )

    def learning_rate(self, epoch: int) -> float:
        done = epoch / self.epochs
        if self.schedule == "cosine":
            return self.lr * (1 + math.cos(math.pi * done)) / 2
        return self.lr * (1 if done < 0.6 else 0.1 if done < 0.8 else 0.01)

    def views(self, size: int) -> Views:
        return Views(size, self.crop_scale, jitter=0.0, grey=0.0)


def paper_probe(size: int) -> Training:
    """The linear probe of the authors' code, for CIFAR or ImageNet. Batch sizes and ImageNet's crops are our choice."""
    if size < LARGE:
        return Training("sgd", 30.0, 100, 512, 0.0, "steps", (0.8, 1.0))
    return Training("lars", 0.8, 60, 1024, 0.0, "cosine", (0.08, 1.0))


def paper_side(size: int) -> int:
    """The side that the paper's test images are resized to before their centre is cut out: 36 for 32, 256 for 224."""
    return round(size * (36 / 32 if size < LARGE else 256 / 224))


def finetuning(size: int) -> Training:
    """All weights trained; our choice, as the paper gives no settings."""
    return Training("sgd", 0.05, 50, 128, 1e-4, "cosine", (0.2 if size < LARGE else 0.08, 1.0))
