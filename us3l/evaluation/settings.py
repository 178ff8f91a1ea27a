"""Settings of an evaluation, without torch so that the command line can read them at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from us3l.evaluation.protocols import ProbeKind, Protocol, Training, finetuning, paper_probe
from us3l.run.identity import EvaluationSplit
from us3l.setting_types import AllWidths, SomeShares, several
from us3l.system.devices import Device
from us3l.system.errors import UserError

TRAINED = ("epochs", "lr", "batch_size", "weight_decay")
"""Settings of the protocols that train by steps."""
STEPWISE = ("paper", "finetune")


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
