"""How large the runs of a table are: as the paper has it, or for CPUs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from us3l.evaluation.protocols import Protocol
from us3l.system.errors import UserError, did_you_mean
from us3l.training.recipes import Recipe, named, twin

ScaleName = Literal["mini", "small", "paper"]


@dataclass(frozen=True)
class Scale:
    """How large everything is. Two rows are compared at one scale; two scales are not compared with each other."""

    about: str
    protocol: Protocol
    widths: tuple[float, ...] | None = None
    """At which networks are evaluated, and individual ones trained (None: those of the table)."""
    images: int | None = None
    size: int | None = None
    """Side of the images in pixels, at most."""
    epochs: int | None = None
    """None: the paper's own recipes, not their twins for CPUs."""
    calibration: int | None = None
    labelled: int | None = None
    """Images that probes learn from."""
    detector: dict[str, Any] = field(default_factory=dict, hash=False)
    """Settings of detectors."""
    stand_ins: dict[str, str] = field(default_factory=dict, hash=False)
    """Data sets that are used in place of others."""

    def data(self, name: str) -> str:
        """Return the data set that is used for one of the paper's."""
        return self.stand_ins.get(name, name)

    def recipe(self, name: str) -> Recipe:
        """Return one of the paper's recipes at this scale.

        Args:
            name: The paper's, such as "cifar-resnet18".
        """
        if self.epochs is None:
            return named(name)
        recipe = named(twin(name))
        return replace(
            recipe,
            images=self.images,
            epochs=self.epochs,
            views=replace(recipe.views, size=min(recipe.views.size, self.size or recipe.views.size)),
            optimiser=replace(recipe.optimiser, warmup=recipe.optimiser.warmup * self.epochs / recipe.epochs),
            calibration=self.calibration or recipe.calibration,
        )


MINI = Scale(
    "mini scale: networks a quarter as wide (base 16; ViTs base 32 and half as deep), 3,000 training images of 32 "
    "pixels (64 for ImageNet, for which CIFAR-100 stands in), 10 epochs of batches of 128, exact linear probe on "
    "5,000 labelled images; for comparing rows with each other, not with the paper's figures",
    protocol="fast",
    widths=(1.0, 0.75, 0.5, 0.25),
    images=3000,
    epochs=10,
    calibration=1024,
    labelled=5000,
    detector={"steps": 300, "batch": 4, "image_size": 128, "channels": 32, "regions": 128},
    stand_ins={"imagenet": "cifar100"},
)
SCALES: dict[ScaleName, Scale] = {
    "mini": MINI,
    "small": replace(
        MINI,
        about="small scale: the networks of the mini scale, 25,000 training images of 16 pixels (CIFAR-100 stands in "
        "for ImageNet), 11 epochs of batches of 128 (2,145 steps), exact linear probe on 25,000 labelled images; for "
        "comparing rows with each other, not with the paper's figures",
        images=25_000,
        size=16,
        epochs=11,
        labelled=25_000,
    ),
    "paper": Scale("the paper's scale", protocol="paper"),
}


def scale_of(name: str) -> Scale:
    """Return a scale by its name."""
    if name not in SCALES:
        raise UserError(f"unknown `scale` {name!r}: {did_you_mean(name, SCALES)}")
    return SCALES[name]
