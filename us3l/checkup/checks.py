"""Does a device compute what the CPU computes? A training step and an evaluation, beside double precision."""

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
from us3l.checkup.findings import DeviceCheck
from us3l.data.images import ImageSet
from us3l.data.preprocessing import Preprocessing
from us3l.distributed.launching import make_fabric
from us3l.evaluation.features import embed
from us3l.evaluation.frozen import evaluate_frozen
from us3l.system.devices import Precision
from us3l.training.recipes import MINI, Network, Optimiser, Recipe
from us3l.training.trainer import Trainer, new_network

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
class PlannedCheck:
    """A check that is still to be made: its name, the largest difference that passes, and what finds the difference."""

    name: str
    tolerance: float | None
    difference: Callable[[], float]

    def carry_out(self) -> DeviceCheck:
        """Make the check; whatever goes wrong is what it found."""
        try:
            found = self.difference()
        except Exception as error:  # a driver, a library or a device may fail in any way
            return failure(self.name, error, self.tolerance)
        if self.tolerance is None:
            return DeviceCheck(self.name, True)
        passed = math.isfinite(found) and found <= self.tolerance
        shown = found if math.isfinite(found) else None
        return DeviceCheck(self.name, passed, shown, self.tolerance, "" if passed else f"it differs by {found:.2g}")


def failure(name: str, error: Exception, tolerance: float | None = None) -> DeviceCheck:
    """A check that ended with an error."""
    lines = str(error).strip().splitlines() or [""]
    return DeviceCheck(name, False, None, tolerance, f"{type(error).__name__}: {lines[0]}")


def plans(device: torch.device, precision: Precision) -> list[PlannedCheck]:
    """The checks of a device.

    Args:
        device: Which one.
        precision: In which it would train; it is checked beside 32 bits.
    """
    found = [
        PlannedCheck("training step", TOLERANCES["32-true"], lambda: training_difference(device, "32-true")),
        PlannedCheck("evaluation", TOLERANCES["32-true"], lambda: evaluation_difference(device)),
    ]
    if precision != "32-true":
        other = PlannedCheck(
            f"training step in {precision}", TOLERANCES[precision], lambda: training_difference(device, precision)
        )
        found.insert(1, other)
    if device.type == "cuda":
        found.append(PlannedCheck("no waits within a step", None, lambda: wait_free_step(device)))
    return found


def patterns(count: int = 64) -> ImageSet:
    """Images of a few classes, always the same ones."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % CLASSES
    coarse = torch.rand(CLASSES, 3, 4, 4, generator=generator)
    pixels = F.interpolate(coarse, (SIZE, SIZE), mode="bilinear")[labels]
    noise = 0.2 * torch.randn(count, 3, SIZE, SIZE, generator=generator)
    images = ((pixels + noise).clamp(0, 1) * 255).to(torch.uint8)
    return ImageSet("patterns", images, labels, [str(label) for label in range(CLASSES)])


def losses_of(device: torch.device, precision: str, recipe: Recipe = SMALL) -> Tensor:
    """Those of all networks in a few steps, on the CPU in double precision."""
    trainer = Trainer(recipe, patterns(), make_fabric(device.type, 1, precision))
    return torch.cat([torch.stack(trainer.train_step().losses) for _ in range(STEPS)]).cpu().double()


def training_difference(device: torch.device, precision: Precision) -> float:
    """The largest relative difference of a loss: the second step's are those of weights that the first has changed."""
    expected = losses_of(torch.device("cpu"), "64-true")
    with exact():
        found = losses_of(device, precision)
    return relative(found, expected)


@torch.no_grad()
def evaluation_difference(device: torch.device) -> float:
    """The largest relative difference of a feature, at two widths; accuracies may differ by one image."""
    images, seen = patterns(), Preprocessing.usual(SIZE)
    ours, theirs = new_network(SMALL), new_network(SMALL)
    with exact():
        ours.to(device)
        calibrate(ours, seen.apply(images.images), WIDTHS)
        found = evaluate_frozen(ours, images, images, WIDTHS, size=SIZE, floor=False)
        features = {width: embed(ours.at(width), images.images, SIZE).cpu().double() for width in WIDTHS}
    calibrate(theirs, seen.apply(images.images), WIDTHS)
    expected = evaluate_frozen(theirs, images, images, WIDTHS, size=SIZE, floor=False)
    for result, right in zip(found.results, expected.results, strict=True):
        for name in ("knn", "linear"):
            if abs(getattr(result, name) - getattr(right, name)) > 100 / len(images) + 1e-6:
                raise ArithmeticError(
                    f"{name} at {result.width:g}x is {getattr(result, name):.1f} %, not {getattr(right, name):.1f} %"
                )
    doubles = {width: theirs.carve(width).double()(seen.apply(images.images).double()) for width in WIDTHS}
    return max(relative(features[width], doubles[width]) for width in WIDTHS)


def wait_free_step(device: torch.device) -> float:
    """A step in which CUDA itself reports waits as errors."""
    trainer = Trainer(SMALL, patterns(), make_fabric(device.type, 1, "32-true"))
    trainer.train_step()
    torch.cuda.synchronize(device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        trainer.train_step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return 0.0


def relative(found: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest value."""
    return ((found - expected).abs().max() / expected.abs().max().clamp(min=1e-12)).item()


@contextmanager
def exact() -> Iterator[None]:
    """Without TF32, by which GPUs shorten products of 32 bits."""
    switches: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [switch.allow_tf32 for switch in switches]
    try:
        for switch in switches:
            switch.allow_tf32 = False
        yield
    finally:
        for switch, value in zip(switches, before, strict=True):
            switch.allow_tf32 = value
