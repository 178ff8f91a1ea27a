"""What an evaluation measures, and how classifiers are trained: values without torch, for the command line to read."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from us3l.data.view_settings import Views
from us3l.run.identity import EvaluationSplit
from us3l.setting_types import AllWidths, SomeShares, several
from us3l.system.devices import Device
from us3l.system.errors import UserError

Protocol = Literal["fast", "paper", "finetune", "classifier"]
ProbeKind = Literal["imagenet", "transfer", "vit"]
"""The linear probes of the paper: of ImageNet, of all other data sets, and of vision transformers."""
PROBES: dict[ProbeKind, str] = {
    "imagenet": "ImageNet",
    "transfer": "data sets other than ImageNet",
    "vit": "vision transformers",
}
IMAGENET = "imagenet"
LARGE = 64
"""From this image size on crops are those of photographs, below it those of CIFAR."""
TRAINED = ("epochs", "lr", "batch_size", "weight_decay")
"""Settings of the protocols that train by steps."""
STEPWISE = ("paper", "finetune")
VIT_RATE = 0.1 / 256
"""Learning rate of a ViT's probe per image in a batch."""


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

    def __str__(self) -> str:
        return (
            f"{self.optimiser.upper()}, learning rate {self.lr:g} ({self.schedule}), {self.epochs} epochs, "
            f"batches of {self.batch_size}"
        )

    def views(self, size: int) -> Views:
        return Views(size, self.crop_scale, jitter=0.0, grey=0.0)


def usual_probe(data: str, transformer: bool) -> ProbeKind:
    """The probe that the paper has for a data set and a kind of network.

    Args:
        data: The data set's name.
        transformer: Whether the network is a vision transformer.

    >>> usual_probe("imagenet", False), usual_probe("flowers102", False), usual_probe("cifar10", True)
    ('imagenet', 'transfer', 'vit')
    """
    if transformer:
        return "vit"
    return "imagenet" if data == IMAGENET else "transfer"


def paper_probe(kind: ProbeKind, size: int, batch_size: int | None = None) -> Training:
    """A linear probe as the paper and the authors' code train it.

    Batch sizes are our choice, and so are the crops from 64 pixels on.

    Args:
        kind: Which of the paper's probes.
        size: Side of the images.
        batch_size: Images in a batch (default: 1,024 for ImageNet, else 512).
    """
    crops = (0.8, 1.0) if size < LARGE else (0.08, 1.0)
    if kind == "imagenet":
        return Training("lars", 0.8, 60, batch_size or 1024, 0.0, "cosine", crops)
    batch_size = batch_size or 512
    if kind == "vit":
        return Training("sgd", VIT_RATE * batch_size, 90, batch_size, 0.0, "cosine", crops)
    return Training("sgd", 30.0, 100, batch_size, 0.0, "steps", crops)


def paper_side(size: int) -> int:
    """The side that the paper's test images are resized to before their centre is cut out: 36 for 32, 256 for 224."""
    return round(size * (36 / 32 if size < LARGE else 256 / 224))


def finetuning(size: int) -> Training:
    """A whole network; our choice, as the paper gives no settings."""
    return Training("sgd", 0.05, 50, 128, 1e-4, "cosine", (0.2 if size < LARGE else 0.08, 1.0))


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """What is measured, and how."""

    widths: AllWidths | None = None
    """Widths to evaluate, or "all" distinct ones (default: the paper's nine, as far as the network has them). A name
    such as 0.75-0.75-0.5-0.5 is a sub-network with a width for each stage."""
    protocol: Protocol = "fast"
    """What learns from the labels."""
    probe: Literal["auto"] | ProbeKind = "auto"
    """Which of the paper's probes: for ImageNet, for other data, or for ViTs (paper; auto: by data and network)."""
    split: EvaluationSplit = "test"
    """Test on the test images, or on validation images: a fixed tenth of each class of the training images, which the
    classifiers then do not learn from. Use validation to choose settings (see us3l pretrain --validation)."""
    floor: bool = True
    """Also evaluate the untrained network (fast)."""
    quality: bool = True
    """Also measure what needs no labels: RankMe, LiDAR and agreement with the full width (fast)."""
    label_share: SomeShares = ()
    """Also learn linear probes from these shares of every class's labels (fast)."""
    seeds: int = 1
    """Repeat with this many seeds, for mean and standard deviation (label shares, paper, finetune)."""
    epochs: int | None = None
    """Epochs of training (paper, finetune)."""
    lr: float | None = None
    """Learning rate at its start (paper, finetune)."""
    batch_size: int | None = None
    """Images in a batch (paper, finetune)."""
    weight_decay: float | None = None
    """Weight decay (paper, finetune)."""
    device: Device = "auto"
    """Device to compute on."""

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise UserError(f"seeds must be at least 1, not {self.seeds}")
        given = sorted(name for name in TRAINED if getattr(self, name) is not None)
        if given and self.protocol not in STEPWISE:
            raise UserError(
                f"{given[0]} has no meaning for the {self.protocol} protocol, which trains nothing by steps"
            )
        if self.probe != "auto" and self.protocol != "paper":
            raise UserError(f"probe={self.probe!r} is one of the paper's: it goes with the protocol 'paper'")
        if self.label_share and self.protocol != "fast":
            raise UserError("label_share goes with the fast protocol; for others give fewer images (`train_images`)")
        for share in several(self.label_share):
            if not 0 < share <= 1:
                raise UserError(f"a share of the labels is above 0 and at most 1, not {share:g}")

    def training(self, size: int, kind: ProbeKind) -> Training | None:
        """How classifiers are trained; None for protocols that do not train by steps.

        Args:
            size: Side of the images.
            kind: Which of the paper's probes.
        """
        if self.protocol not in STEPWISE:
            return None
        usual = paper_probe(kind, size, self.batch_size) if self.protocol == "paper" else finetuning(size)
        return replace(usual, **{name: value for name in TRAINED if (value := getattr(self, name)) is not None})
