"""Check that a device computes what the CPU computes in double precision: a training step and an evaluation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from us3l.calibration import calibrate
from us3l.data.images import ImageSet
from us3l.data.preprocessing import Preprocessing
from us3l.distributed.launching import make_fabric
from us3l.evaluation.features import embed
from us3l.evaluation.frozen_features import evaluate_fast
from us3l.evaluation.prepare import prepare
from us3l.system.devices import Precision
from us3l.training.recipes import MINI, Network, Optimiser, Recipe
from us3l.training.run_networks import new_network
from us3l.training.trainer import Trainer

STEPS, SIZE, CLASSES = 2, 16, 4
WIDTHS = (1.0, 0.5)
TOLERANCES: dict[Precision, float] = {"32-true": 1e-3, "bf16-mixed": 0.05, "16-mixed": 0.05}
"""Relative differences of losses that pass, by precision; that of 32 bits counts for features too."""
SMALL = replace(
    MINI,
    network=Network(base=8),
    objective=replace(MINI.objective, hidden=32, predictor=32, dim=16, max_first=False, samples=3),
    optimiser=Optimiser(lr=0.05),
    views=replace(MINI.views, size=SIZE, blur=0.5),
    batch_size=32,
    max_steps=STEPS,
)


@dataclass(frozen=True)
class DeviceCheck:
    """The outcome of one check."""

    name: str
    passed: bool
    difference: float | None = None
    """The largest difference, relative to the values; None if the check did not get that far."""
    tolerance: float | None = None
    """The largest difference that passes."""
    detail: str = ""
    """What went wrong."""


@dataclass(frozen=True)
class PlannedCheck:
    """A check to run: its name, the largest difference that passes, and the function that measures the difference."""

    name: str
    tolerance: float
    difference: Callable[[], float]

    def run(self) -> DeviceCheck:
        """Run the check. Any exception is a failed check: a driver, a library or a device may fail in any way."""
        try:
            difference = self.difference()
        except Exception as error:
            reason = (str(error).strip().splitlines() or [""])[0]
            return DeviceCheck(self.name, False, None, self.tolerance, f"{type(error).__name__}: {reason}")
        if math.isfinite(difference) and difference <= self.tolerance:
            return DeviceCheck(self.name, True, difference, self.tolerance)
        measured = difference if math.isfinite(difference) else None
        return DeviceCheck(self.name, False, measured, self.tolerance, f"it differs by {difference:.2g}")


def planned_checks(device: torch.device, precision: Precision) -> list[PlannedCheck]:
    """Return the checks of a device.

    Args:
        device: The device to check.
        precision: The precision in which it would train, which is checked beside 32 bits.
    """
    checks = [PlannedCheck("training step", TOLERANCES["32-true"], lambda: training_difference(device, "32-true"))]
    if precision != "32-true":
        checks.append(
            PlannedCheck(
                f"training step in {precision}", TOLERANCES[precision], lambda: training_difference(device, precision)
            )
        )
    return [*checks, PlannedCheck("evaluation", TOLERANCES["32-true"], lambda: evaluation_difference(device))]


def patterns(count: int = 64) -> ImageSet:
    """Return images of a few classes, always the same ones."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % CLASSES
    coarse = torch.rand(CLASSES, 3, 4, 4, generator=generator)
    pixels = F.interpolate(coarse, (SIZE, SIZE), mode="bilinear")[labels]
    noise = 0.2 * torch.randn(count, 3, SIZE, SIZE, generator=generator)
    images = ((pixels + noise).clamp(0, 1) * 255).to(torch.uint8)
    return ImageSet("patterns", images, labels, [str(label) for label in range(CLASSES)])


def losses_of(device: torch.device, precision: str, recipe: Recipe = SMALL) -> Tensor:
    """Return the losses of all networks in a few steps, as doubles on the CPU."""
    trainer = Trainer(recipe, patterns(), make_fabric(device.type, 1, precision))
    return torch.cat([torch.stack(trainer.train_step().losses) for _ in range(STEPS)]).cpu().double()


def training_difference(device: torch.device, precision: Precision) -> float:
    """Return the largest relative difference of a loss. The second step's losses depend on the first step's update."""
    expected = losses_of(torch.device("cpu"), "64-true")
    with exact():
        actual = losses_of(device, precision)
    return relative(actual, expected)


@torch.no_grad()
def evaluation_difference(device: torch.device) -> float:
    """Return the largest relative difference of a feature at two widths; accuracies may differ by one image."""
    images, seen = patterns(), Preprocessing.usual(SIZE)
    ours, theirs = new_network(SMALL), new_network(SMALL)
    with exact():
        ours.to(device)
        calibrate(ours, seen.apply(images.images), WIDTHS)
        results = evaluate_fast(prepare(ours, images, images, WIDTHS, size=SIZE))
        features = {width: embed(ours.at(width), images.images, SIZE).cpu().double() for width in WIDTHS}
    calibrate(theirs, seen.apply(images.images), WIDTHS)
    expected = evaluate_fast(prepare(theirs, images, images, WIDTHS, size=SIZE))
    for result, right in zip(results.rows, expected.rows, strict=True):
        for metric, score in result.scores.items():
            wanted = right.scores[metric].top1
            if abs(score.top1 - wanted) > 100 / len(images) + 1e-6:
                raise ArithmeticError(f"{metric} at {result.width:g}x is {score.top1:.1f} %, not {wanted:.1f} %")
    doubles = {width: theirs.carve(width).double()(seen.apply(images.images).double()) for width in WIDTHS}
    return max(relative(features[width], doubles[width]) for width in WIDTHS)


def relative(actual: Tensor, expected: Tensor) -> float:
    """Return the largest difference, relative to the largest value."""
    return ((actual - expected).abs().max() / expected.abs().max().clamp(min=1e-12)).item()


@contextmanager
def exact() -> Iterator[None]:
    """Switch off TF32, with which GPUs round the factors of 32-bit products."""
    switches: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [switch.allow_tf32 for switch in switches]
    try:
        for switch in switches:
            switch.allow_tf32 = False
        yield
    finally:
        for switch, value in zip(switches, before, strict=True):
            switch.allow_tf32 = value
