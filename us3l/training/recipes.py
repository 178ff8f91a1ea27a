"""Recipes: everything that decides what a run learns, as frozen values with names."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, Literal

from us3l.data.spec import Views
from us3l.errors import UserError
from us3l.objective.spec import Objective

Backbone = Literal["resnet18", "resnet50", "mobilenet_v2", "vit_tiny", "vit_small"]


@dataclass(frozen=True)
class Network:
    backbone: Backbone = "resnet18"
    """Which family of networks."""
    stem: Literal["cifar", "imagenet"] = "cifar"
    """First layers: for images of up to about 64 pixels, or for larger ones."""
    base: int = 64
    """Channels of the first stage at width 1 (64 in the paper; 16 makes a network for CPUs)."""
    min_width: float = 0.25
    """The narrowest width."""
    individual: float | None = None
    """Train the network of this width alone, as a baseline."""
    switchable: bool = False
    """Give each of the --fixed-widths batch-norm weights of its own (S-Net)."""
    patch: int | None = None
    """Side of a ViT's patches in pixels (default: 4 with the stem "cifar", else 16)."""
    heads: int | None = None
    """A ViT's attention heads (default: 3 for Tiny, 6 for Small; the paper has 6 and 12)."""
    depth: int | None = None
    """A ViT's blocks (default: 12)."""
    frozen_patches: bool = True
    """Leave a ViT's patch embedding as it was drawn, as MoCo v3 and the paper do."""


@dataclass(frozen=True)
class Optimiser:
    """SGD with momentum; the learning rate falls to zero along a cosine."""

    lr: float = 0.5
    """Learning rate at the start."""
    momentum: float = 0.9
    """Momentum of SGD."""
    weight_decay: float = 1e-4
    """Weight decay of the first group of channels."""

    def __post_init__(self) -> None:
        if not (self.lr > 0 and 0 <= self.momentum < 1 and self.weight_decay >= 0):
            raise UserError(
                f"lr={self.lr} must be positive, momentum={self.momentum} from 0 to below 1, "
                f"and weight_decay={self.weight_decay} not negative"
            )


@dataclass(frozen=True)
class Recipe:
    network: Network = field(default_factory=Network)
    objective: Objective = field(default_factory=Objective)
    views: Views = field(default_factory=Views)
    optimiser: Optimiser = field(default_factory=Optimiser)
    epochs: int = 400
    """Passes over the images."""
    batch_size: int = 512
    """Images in a batch, over all devices."""
    max_steps: int | None = None
    """Stop after this many steps; the schedules follow."""
    images: int | None = None
    """Use only so many of the images."""
    seed: int = 0
    """Decides the first weights, the order of the images, the views and the widths."""
    calibration: int = 2048
    """Training images on which batch-norm statistics are collected at the end."""

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "max_steps", "images", "calibration"):
            value = getattr(self, name)
            if value is not None and value < (2 if name in ("batch_size", "calibration") else 1):
                raise UserError(f"{name}={value} is too small")

    def with_objective(self, **changes: Any) -> Recipe:
        """This recipe for another method.

        MSE base losses train at a fifth of the learning rate and five times the weight decay, as the paper's SimSiam
        and BYOL do beside its InfoNCE methods (`appendix-details`).
        """
        objective, optimiser = replace(self.objective, **changes), self.optimiser
        if (objective.base_loss, self.objective.base_loss) == ("mse", "infonce"):
            optimiser = replace(optimiser, lr=optimiser.lr / 5, weight_decay=optimiser.weight_decay * 5)
        return replace(self, objective=objective, optimiser=optimiser)


PAPER_CIFAR = Recipe()
MINI = replace(
    PAPER_CIFAR,
    network=Network(base=16),
    objective=Objective(hidden=512, predictor=512, dim=128, temperature=0.2),
    optimiser=Optimiser(lr=0.2),
    epochs=15,
    batch_size=128,
)

RECIPES: dict[str, tuple[Recipe, str]] = {
    "mini": (MINI, "a small ResNet-18 on 32-pixel images, for CPUs"),
    "digits": (
        replace(
            MINI,
            views=Views(size=16, crop_scale=(0.4, 1.0), flip=0.0, grey=0.0, hue=0.0, saturation=0.0),
            epochs=30,
        ),
        "the demo: handwritten digits on a CPU, in minutes",
    ),
    "cifar-resnet18": (PAPER_CIFAR, "the paper's ResNet-18 on CIFAR (a GPU job)"),
    "cifar-resnet50": (
        replace(PAPER_CIFAR, network=Network("resnet50"), optimiser=Optimiser(lr=0.25)),
        "the paper's ResNet-50 on CIFAR (a GPU job)",
    ),
}


def named(name: str) -> Recipe:
    if name not in RECIPES:
        close = get_close_matches(name, RECIPES, n=3, cutoff=0.3)
        hint = f"did you mean {' or '.join(close)}? All: " if close else "choose from "
        raise UserError(f"unknown recipe {name!r}: {hint}{', '.join(RECIPES)}")
    return RECIPES[name][0]
