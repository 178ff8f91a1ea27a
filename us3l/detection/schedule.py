"""Settings of a detector and its training, without torch so that the command line can read them at once."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, fields
from math import ceil, isfinite
from typing import Literal

from us3l.setting_types import AnyPath, NamedData, OneWidth
from us3l.system.devices import Device
from us3l.system.errors import UserError

USUAL_BATCH, USUAL_LR = 16, 0.02


@dataclass(frozen=True)
class Schedule:
    """The usual 1x schedule of a data set, in steps of 16 images."""

    steps: int
    drops: tuple[float, float]
    """Shares of the steps after which the learning rate falls to a tenth."""
    warmup: int
    smallest: float
    """Of the random sizes that images are trained at, as a share of the largest."""


# COCO: detectron2's 1x. VOC: its 24,000 steps, as MoCo has them.
SCHEDULES = {"coco": Schedule(90_000, (2 / 3, 8 / 9), 1000, 0.8), "voc": Schedule(24_000, (3 / 4, 11 / 12), 100, 0.6)}


@dataclass(frozen=True, kw_only=True)
class DetectorTraining:
    """How a detector is built and trained."""

    schedule: float = 1.0
    """Length of training in units of the usual 1x (VOC: 24,000 steps of 16 images, COCO: 90,000)."""
    steps: int | None = None
    """Length of training in steps, instead of `schedule`."""
    batch: int = USUAL_BATCH
    """Images per step."""
    lr: float | None = None
    """Learning rate (default: 0.02 for 16 images, in proportion for others)."""
    image_size: int | None = None
    """Shorter side of the images, in pixels (default: 800, but 200 for networks with CIFAR's stem)."""
    channels: int = 256
    """Channels of the pyramid and of the heads on it; the box head is four times as wide."""
    regions: int = 512
    """Regions of each image that the heads learn from in a step; fewer are faster on a CPU."""
    norms: Literal["frozen", "trained"] = "frozen"
    """Batch norm: fixed at the width's calibrated statistics, or trained with those of each batch."""
    seed: int = 0
    """Decides the heads' first weights, the order of images and everything else that is random."""

    def __post_init__(self) -> None:
        for name in ("schedule", "steps", "batch", "lr", "image_size", "channels", "regions"):
            value = getattr(self, name)
            if value is not None and not (isfinite(value) and value > 0):
                raise UserError(f"{name} must be above 0, not {value}")
        if self.seed < 0:
            raise UserError(f"seed must not be negative, not {self.seed}")

    @property
    def training(self) -> DetectorTraining:
        """These settings alone, without those of the data and of the machine."""
        return DetectorTraining(**{field.name: getattr(self, field.name) for field in fields(DetectorTraining)})

    def plan(self, layout: str) -> LearningRates:
        usual = SCHEDULES[layout]
        # As many images as the usual schedule sees, whatever the batch.
        steps = self.steps or max(1, round(self.schedule * usual.steps * USUAL_BATCH / self.batch))
        return LearningRates(
            steps,
            self.lr or USUAL_LR * self.batch / USUAL_BATCH,
            min(usual.warmup, ceil(steps / 10)),
            tuple(round(share * steps) for share in usual.drops),
        )


@dataclass(frozen=True)
class DetectionSettings(DetectorTraining, NamedData):
    """How a detector is trained, and what on."""

    data: AnyPath
    """Images with boxes: voc, coco or a folder."""
    width: OneWidth
    """The sub-network's width."""
    _: KW_ONLY
    out: AnyPath | None = None
    """Folder for the results (default: detect/ in the run's folder)."""
    resume: bool = False
    """Continue a training that was stopped; give the same settings again."""
    overwrite: bool = False
    """Replace earlier results of this data and width."""
    masks: Literal["auto", "yes", "no"] = "auto"
    """Also learn masks (auto: if every object of the training images has one)."""
    train_split: str | None = None
    """Split to train on (default: trainval or train of VOC's layout, train2017 of COCO's)."""
    test_split: str | None = None
    """Split to test on (default: test or val of VOC's layout, val2017 of COCO's)."""
    limit: int | None = None
    """Use only this many images of each split."""
    floor: bool = False
    """Also evaluate the same detector before training."""
    save_every: int = 200
    """Save the state of training after this many steps."""
    workers: int = 2
    """Processes that decode images."""
    device: Device = "auto"
    """Device to compute on."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.save_every < 1 or self.workers < 0:
            raise UserError(f"save_every={self.save_every} must be at least 1, and workers={self.workers} at least 0")


@dataclass(frozen=True)
class LearningRates:
    """A learning rate for each step."""

    steps: int
    lr: float
    warmup: int
    drops: tuple[int, ...]

    def learning_rate(self, step: int) -> float:
        """Rises linearly from a thousandth, stays, and falls to a tenth at each drop.

        >>> plan = LearningRates(steps=90, lr=0.02, warmup=10, drops=(60, 80))
        >>> [round(plan.learning_rate(step), 6) for step in (0, 5, 10, 59, 60, 80)]
        [2e-05, 0.01001, 0.02, 0.02, 0.002, 0.0002]
        """
        share = step / self.warmup
        rising = 1.0 if share >= 1 else 0.001 * (1 - share) + share
        return self.lr * rising * 0.1 ** sum(step >= drop for drop in self.drops)
