"""Methods by name: what they change in the objective and the network of a recipe."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from us3l.objective.spec import Objective
from us3l.system.errors import UserError, did_you_mean

OF_RECIPES = (
    "temperature relation_temperature teacher_temperature queue teacher_momentum teacher_memory hidden predictor dim "
    "stratified mixed mixed_depth groups alpha_ramp"
).split()
"""Settings of the objective that a recipe decides; all others make a method."""
US3L: dict[str, Any] = {each.name: each.default for each in fields(Objective) if each.name not in OF_RECIPES}
"""All that makes a method, as it is in US3L."""
PLAIN: dict[str, Any] = US3L | {"max_first": False, "gradual": False, "alpha": 0.0}
"""Without US3L's strategies: no dynamic sampling, no group regularisation."""
NO_TEACHER: dict[str, Any] = {"momentum_base": False, "momentum_sub": False}
UNDISTILLED: dict[str, Any] = {"distill_loss": "none", "head": "none", "momentum_sub": False}
ALONE: dict[str, Any] = {**PLAIN, **UNDISTILLED, "samples": 1}
US_NET: dict[str, Any] = {**PLAIN, "samples": 4}
S_NET: dict[str, Any] = {**PLAIN, **UNDISTILLED, **NO_TEACHER, "fixed_widths": (1.0, 0.75, 0.5, 0.25)}
SINGLE: dict[str, Any] = {"switchable": False, "individual": 1.0}
SWITCHABLE: dict[str, Any] = {"switchable": True, "individual": None}
SUPERVISED: dict[str, Any] = {"base_loss": "cross-entropy", **NO_TEACHER}
TAUGHT: dict[str, Any] = {**PLAIN, **UNDISTILLED, **NO_TEACHER, "teacher_features": 0.5, "teacher_relations": 0.5}
"""All widths imitate a pretrained teacher, and learn nothing else."""
SIMSIAM: dict[str, Any] = {"base_loss": "mse", **NO_TEACHER, "projector_norm": True}
MOCO_V3: dict[str, Any] = {"base_loss": "mocov3", "temperature": 0.2, "final_norm": True, "teacher_schedule": "cosine"}


@dataclass(frozen=True)
class Method:
    about: str
    objective: dict[str, Any]
    network: dict[str, Any] = field(default_factory=lambda: {"switchable": False, "individual": None})


METHODS: dict[str, Method] = {
    "us3l": Method("InfoNCE with a momentum teacher, MSE distillation through a head of its own (the paper's)", US3L),
    "us3l-plus": Method(
        "US3L with imitation by InfoNCE on gentle crops, one update per width, and a longer memory (ours)",
        {
            **US3L,
            "distill_loss": "infonce",
            "update": "per-width",
            "sub_crop": 0.8,
            "teacher_momentum": None,
            "teacher_memory": 0.012,
        },
    ),
    "us3l-byol": Method(
        "the same on BYOL's base loss (the authors' configuration for ImageNet)", {**US3L, "base_loss": "mse"}
    ),
    "us3l-mocov3": Method(
        "US3L on MoCo v3: InfoNCE distillation through a head of its own, no group regularisation (for ViTs)",
        {**US3L, **MOCO_V3, "distill_loss": "infonce", "alpha": 0.0},
    ),
    "imitate": Method(
        "all widths, the full one too, imitate the features and similarities of a pretrained `teacher` (ours)", TAUGHT
    ),
    "us3l-imitate": Method(
        "half US3L, half imitation of the features of a pretrained `teacher` by all widths (ours)",
        {**US3L, "teacher_features": 0.5},
    ),
    "us-simclr": Method(
        "US-Net with SimCLR: four widths per batch, in-place distillation by InfoNCE",
        {**US_NET, **NO_TEACHER, "distill_loss": "infonce", "head": "none"},
    ),
    "us-simsiam": Method(
        "US-Net with SimSiam: in-place distillation through the shared predictor",
        {**US_NET, **SIMSIAM, "head": "shared"},
    ),
    "us-byol": Method(
        "US-Net with BYOL: all widths predict the momentum teacher through the shared predictor",
        {**US_NET, "base_loss": "mse", "head": "shared"},
    ),
    "us-mocov3": Method(
        "US-Net with MoCo v3: all widths predict the momentum teacher through the shared predictor",
        {**US_NET, **MOCO_V3, "distill_loss": "infonce", "head": "shared"},
    ),
    "simclr": Method("SimCLR, one network alone (any width: `individual`)", {**ALONE, "momentum_base": False}, SINGLE),
    "moco": Method("MoCo with a queue, one network alone", {**ALONE, "base_loss": "moco", "temperature": 0.2}, SINGLE),
    "simsiam": Method("SimSiam, one network alone", {**ALONE, **SIMSIAM}, SINGLE),
    "byol": Method("BYOL, one network alone", {**ALONE, "base_loss": "mse"}, SINGLE),
    "mocov3": Method("MoCo v3, one network alone", {**ALONE, **MOCO_V3}, SINGLE),
    "seed": Method(
        "SEED: one network alone imitates a pretrained `teacher`'s similarities to a queue",
        {**ALONE, **NO_TEACHER, "base_loss": "seed"},
        SINGLE,
    ),
    "seed-mse": Method(
        "SEED by MSE: one network alone predicts a pretrained `teacher`'s embeddings of the other view",
        {**ALONE, **NO_TEACHER, "base_loss": "seed-mse"},
        SINGLE,
    ),
    "s-net-simsiam": Method(
        "S-Net with SimSiam: four widths with batch norms of their own, no distillation",
        {**S_NET, **SIMSIAM},
        SWITCHABLE,
    ),
    "s-net-simsiam-distill": Method(
        "the same with in-place distillation through the shared predictor",
        {**S_NET, **SIMSIAM, "distill_loss": "mse", "head": "shared"},
        SWITCHABLE,
    ),
    "supervised": Method("cross-entropy with labels, one network alone", {**ALONE, **SUPERVISED}, SINGLE),
    "s-net": Method(
        "S-Net, supervised: four widths, each with its own batch norms", {**S_NET, **SUPERVISED}, SWITCHABLE
    ),
    "s-net-distill": Method(
        "the same with in-place distillation of class probabilities",
        {**S_NET, **SUPERVISED, "distill_loss": "soft"},
        SWITCHABLE,
    ),
    "us-net": Method(
        "US-Net, supervised: four widths per batch, in-place distillation of class probabilities",
        {**US_NET, **SUPERVISED, "distill_loss": "soft", "head": "none"},
    ),
}


def method(name: str) -> Method:
    """Return a method by its name.

    >>> method("byol").objective["samples"]
    1
    """
    if name not in METHODS:
        raise UserError(f"unknown method {name!r}: {did_you_mean(name, METHODS)}")
    return METHODS[name]
