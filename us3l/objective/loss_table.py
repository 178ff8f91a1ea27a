"""The losses of a run, a row of values each; their formulas are functions of the same names in `losses.py`.

To add one: its formula, its row and its word in the `Literal` here, a test, and a line of docs/methods.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

BaseLoss = Literal["infonce", "mse", "moco", "mocov3", "cross-entropy", "seed", "seed-mse"]
DistillLoss = Literal["none", "mse", "infonce", "nt-xent", "soft"]
TeacherLoss = Literal["teacher_features", "teacher_relations"]


@dataclass(frozen=True, kw_only=True)
class Loss:
    """What is known of a loss without computing it."""

    title: str
    """Its name for people."""
    function: str
    """Its name in `us3l.objective.losses`. Parameters after the first two are filled in by their names."""
    absolute: bool
    """Whether it compares an output with its own target only, and not also with other samples: the paper's absolute
    distances, which satisfy neither its first nor its second guideline."""
    temperature: Literal["temperature", "relation_temperature"] | None = None
    """The setting that divides its cosines."""
    projected: bool = True
    """Whether it compares unit vectors, which come through the projector and the heads; else logits of classes."""
    crossed: bool = True
    """Whether a view is compared with the target of the other view; else with that of the same one."""
    predictor: bool = False
    """Whether outputs pass through the predictor h first, and targets of the network itself are not learned."""
    queue: bool = False
    """Whether it remembers the targets of earlier batches."""
    views: int = 2
    """Views of an image that it needs."""
    target: Literal["momentum_teacher", "pretrained_teacher", "labels"] | None = None
    """What a base loss compares with, if there is no choice."""


BASE_LOSSES: dict[BaseLoss, Loss] = {
    "infonce": Loss(title="InfoNCE", function="nt_xent", absolute=False, temperature="temperature"),
    "mse": Loss(title="negative cosine", function="negative_cosine", absolute=True, predictor=True),
    "moco": Loss(
        title="MoCo",
        function="moco",
        absolute=False,
        temperature="temperature",
        queue=True,
        target="momentum_teacher",
    ),
    "mocov3": Loss(
        title="MoCo v3",
        function="info_nce",
        absolute=False,
        temperature="temperature",
        predictor=True,
        target="momentum_teacher",
    ),
    "cross-entropy": Loss(
        title="cross-entropy", function="cross_entropy", absolute=False, projected=False, views=1, target="labels"
    ),
    "seed": Loss(
        title="SEED",
        function="seed",
        absolute=False,
        temperature="temperature",
        queue=True,
        views=1,
        target="pretrained_teacher",
    ),
    "seed-mse": Loss(
        title="negative cosine to the teacher",
        function="negative_cosine",
        absolute=True,
        predictor=True,
        target="pretrained_teacher",
    ),
}
"""Losses of the full network."""

DISTILL_LOSSES: dict[DistillLoss, Loss] = {
    "mse": Loss(title="negative cosine", function="negative_cosine", absolute=True),
    "infonce": Loss(title="InfoNCE", function="info_nce", absolute=False, temperature="temperature"),
    "nt-xent": Loss(title="NT-Xent", function="nt_xent", absolute=False, temperature="temperature"),
    "soft": Loss(title="soft cross-entropy", function="soft_cross_entropy", absolute=False, projected=False),
}
"""Losses by which sub-networks imitate the full network or its momentum teacher ("none": they have its base loss)."""

TEACHER_LOSSES: dict[TeacherLoss, Loss] = {
    "teacher_features": Loss(
        title="negative cosine to the teacher's features", function="negative_cosine", absolute=True, crossed=False
    ),
    "teacher_relations": Loss(
        title="similarities of the teacher",
        function="relations",
        absolute=False,
        temperature="relation_temperature",
        crossed=False,
    ),
}
"""Losses by which every network imitates a pretrained teacher's features; each is a share of the whole loss."""
