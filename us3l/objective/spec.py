"""What is minimised, as a row of values."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple, get_args, get_origin, get_type_hints

from us3l.objective.loss_table import (
    BASE_LOSSES,
    DISTILL_LOSSES,
    TEACHER_LOSSES,
    BaseLoss,
    DistillLoss,
    Loss,
    TeacherLoss,
)
from us3l.system.errors import UserError
from us3l.width import Width

PAPER_STEPS = 400 * (50_000 // 512)
"""Of the paper's runs on CIFAR: 400 epochs of batches of 512."""

Target = Literal["labels", "outputs", "stopped", "full", "momentum_teacher", "pretrained_teacher"]
"""What a loss compares outputs with: labels; the outputs themselves, of which both views learn, or which are fixed; or
the outputs of the full network, of the momentum teacher or of a pretrained teacher."""


class Term(NamedTuple):
    """A part of a network's loss."""

    name: str
    """What the loss is called in settings."""
    loss: Loss
    target: Target
    head: Literal["h", "g", "a"]
    """What outputs pass through: the predictor, the sub-networks' own head, or, from features, the alignment with a
    pretrained teacher. A head that a method does not have changes nothing."""
    share: float
    """Of the whole loss."""
    temperature: float | None
    """What divides the cosines, if anything does."""


def memory(momentum: float, steps: int) -> float:
    """Return the share of a run over which a moving average reaches back (its time constant).

    A momentum of 0.99 averages over about a hundred steps: a quarter of a percent of the paper's 38,800, but almost
    half of 230. A short run that is to behave like the long one keeps the share, and not the momentum.

    Args:
        momentum: What the average keeps of itself at every step, above 0 and below 1.
        steps: All steps of the run.

    >>> round(memory(0.99, 38_800), 6)
    0.002564
    """
    return -1 / (steps * math.log(momentum))


def momentum(memory: float, steps: int) -> float:
    """Return the momentum with which a moving average reaches back over a share of a run.

    For one memory, the momentum of a run of n steps is that of a run of N steps to the power of N / n.

    >>> share = memory(0.99, 38_800)
    >>> [round(momentum(share, steps), 3) for steps in (38_800, 2_145, 230)]
    [0.99, 0.834, 0.184]
    """
    return math.exp(-1 / (memory * steps))


RANGES: tuple[tuple[tuple[str, ...], float, float, str], ...] = (
    (("queue", "samples", "groups", "hidden", "predictor", "dim"), 1, math.inf, "at least 1"),
    (
        ("temperature", "teacher_temperature", "relation_temperature", "teacher_memory"),
        sys.float_info.min,
        math.inf,
        "positive",
    ),
    (
        ("teacher_features", "teacher_relations", "teacher_momentum", "full_alone", "mixed", "mixed_depth"),
        0,
        1,
        "a share, from 0 to 1",
    ),
    (("sub_crop",), sys.float_info.min, 1, "a share of the image, above 0 and at most 1"),
)
"""Settings, the least and the greatest value that they may have, and these in words."""


@dataclass(frozen=True)
class Objective:
    """A method as a composition: base loss, distillation loss, head, targets, sampling, regulariser.

    The defaults are US3L: InfoNCE for the full network, distillation from a momentum teacher for the sub-networks.
    """

    base_loss: BaseLoss = "infonce"
    """Loss of the full network. infonce: NT-Xent of the two views. mse: negative cosine similarity through a predictor
    (the paper's MSE). moco: InfoNCE against the momentum teacher, negatives from a queue. mocov3: the same through a
    predictor, negatives from the batch. cross-entropy: with labels. seed, seed-mse: imitate a pretrained --teacher."""
    distill_loss: DistillLoss = "mse"
    """Loss by which sub-networks imitate the full network. none: they do not, but learn by the base loss. mse: negative
    cosine similarity. infonce: the paper's equation 7, negatives are the other targets. nt-xent: as in the authors'
    code, negatives are also the other outputs. soft: cross-entropy with the target's class probabilities."""
    relation_temperature: float = 0.1
    """Temperature of the similarities that are imitated by --teacher-relations, on both sides."""
    teacher_features: float = 0.0
    """The share of every network's loss, the full one's included, that is imitation of a pretrained --teacher's
    features, by their cosine; through a linear layer where dimensions differ."""
    teacher_relations: float = 0.0
    """The share of every network's loss that is imitation of a pretrained --teacher's similarities between the images
    of a batch. If the two shares are 1 together, nothing else is learned."""
    width_power: float = 0.0
    """Multiply a sub-network's weight by its width to this power: above 0 narrow ones count less, below 0 more."""
    head: Literal["none", "shared", "new"] = "new"
    """What sub-networks pass through to imitate: nothing, the base loss's predictor, or a head of their own."""
    momentum_base: bool = True
    """The full network's target is the momentum teacher, not itself."""
    momentum_sub: bool = True
    """The sub-networks' target is the momentum teacher, not the full network."""
    temperature: float = 0.5
    """Temperature of the losses of relative distances."""
    teacher_temperature: float = 1e-4
    """Temperature of a pretrained teacher's similarities in SEED."""
    queue: int = 32768
    """Targets of earlier batches that moco and seed remember."""
    teacher_momentum: float | None = 0.99
    """Share of itself that the momentum teacher keeps at every step; the rest is the network's (None: see
    teacher_memory)."""
    teacher_memory: float = memory(0.99, PAPER_STEPS)
    """The share of all steps over which the teacher averages, in place of a momentum: the same for runs of any length.
    The default is that of a momentum of 0.99 in the paper's runs on CIFAR."""
    teacher_schedule: Literal["constant", "cosine"] = "constant"
    """Whether the teacher's momentum stays, or rises to 1 along a cosine."""
    hidden: int = 2048
    """Hidden units of the projector."""
    predictor: int = 2048
    """Hidden units of the predictor and of the distillation head."""
    dim: int = 2048
    """Dimension of the embedding that the losses compare."""
    final_norm: bool = False
    """End projector and heads with a batch norm without weights, as MoCo v3 does."""
    projector_norm: bool = False
    """End the projector alone with one, as SimSiam does."""
    samples: int = 3
    """Networks run on each batch, the full one included."""
    sandwich: bool = True
    """Always run the narrowest width in use at the time, besides the full one."""
    stratified: bool = False
    """Draw each of a batch's random widths from a part of the range of its own, so that they lie apart: of two, one
    from the lower half and one from the upper half."""
    max_first: bool = True
    """Train the full network alone at first."""
    full_alone: float = 0.25
    """How long the full network trains alone, as a share of the steps, if max_first."""
    gradual: bool = True
    """Lower the narrowest width in three steps of equal length, instead of at once."""
    mixed: float = 0.0
    """The share of the random sub-networks that have a width for each stage, as `us3l search` finds them, instead of
    one for all."""
    mixed_depth: float = 1.0
    """The least share of a stage's blocks that these keep, at least one block; 1 keeps all."""
    fixed_widths: tuple[float, ...] | None = None
    """Run exactly these widths on every batch instead of sampling: the widest is the base (S-Net)."""
    update: Literal["per-batch", "per-width"] = "per-batch"
    """One optimiser step for all widths (the paper's Algorithm 1), or one for each (the authors' code)."""
    sub_crop: float | None = None
    """Give sub-networks views of their own, whose crops cover at least this share of the image (default: they see the
    full network's views). Targets stay those of the full network's views."""
    groups: int = 8
    """Groups of channels in the group regularisation."""
    alpha: float = 0.05
    """Each group of channels is decayed by this fraction less than the one before it; 0 is plain weight decay."""
    alpha_ramp: tuple[float, float] | None = None
    """Let alpha rise from 0 between these shares of training. The authors' code: 0 0.5 for ResNet-18; for ResNet-50 and
    MobileNetV2 0.5 0.5, so that alpha jumps to its full value halfway. The paper has no ramp."""

    def __post_init__(self) -> None:
        for name, allowed in choices().items():
            if getattr(self, name) not in allowed:
                raise UserError(f"{name}={getattr(self, name)!r} must be one of {', '.join(map(repr, allowed))}")
        self._check_ranges()
        self._check_losses()
        self._check_sampling()

    def _check_ranges(self) -> None:
        for names, least, most, text in RANGES:
            for name in names:
                value = getattr(self, name)
                if value is not None and not least <= value <= most:
                    raise UserError(f"{name}={value} must be {text}")
        begin, end = self.alpha_ramp or (0.0, 1.0)
        if not 0 <= begin <= end <= 1:
            raise UserError(f"alpha_ramp={self.alpha_ramp} must be two shares of training in order, from 0 to 1")
        if not self.alpha * self.groups <= 1:
            raise UserError(f"alpha * groups = {self.alpha * self.groups:g} must not exceed 1, or weights would grow")

    def _check_losses(self) -> None:
        base, target = f"base_loss={self.base_loss!r}", BASE_LOSSES[self.base_loss].target
        imitation = DISTILL_LOSSES.get(self.distill_loss)
        if self.head == "shared" and not self.predicts:
            raise UserError(f"head='shared' needs a predictor to share, which {base} does not have")
        if self.head != "none" and (imitation is None or not imitation.projected):
            suited = " or ".join(repr(name) for name, loss in DISTILL_LOSSES.items() if loss.projected)
            raise UserError(
                f"head={self.head!r} serves imitation, so it needs a distill_loss of {suited}; or head='none'"
            )
        if target == "momentum_teacher" and not self.momentum_base:
            raise UserError(f"{base} compares with the momentum teacher: it needs momentum_base")
        if target in ("labels", "pretrained_teacher") and self.momentum_base:
            raise UserError(f"{base} has targets other than a momentum teacher: it excludes momentum_base")
        if target == "pretrained_teacher" and self.momentum_sub:
            raise UserError(f"{base} has a pretrained teacher: it excludes momentum_sub")
        if imitation is not None and not imitation.projected and not self.supervised:
            raise UserError(
                f"distill_loss={self.distill_loss!r} imitates class probabilities, which only "
                "base_loss='cross-entropy' has"
            )
        if sum(self.teacher_shares.values()) > 1:
            raise UserError(
                f"teacher_features={self.teacher_features} and teacher_relations={self.teacher_relations} are shares "
                "of a loss: together at most 1"
            )
        if self.imitates_by_base_loss and self.teacher_shares:
            raise UserError(f"{base} has a pretrained teacher already: it excludes teacher_features, teacher_relations")
        if not self.base_share and (self.momentum_base or self.momentum_sub or self.head != "none"):
            raise UserError(
                "teacher_features and teacher_relations of 1 together leave no other loss: they exclude momentum_base, "
                "momentum_sub and a head (method='imitate')"
            )

    def _check_sampling(self) -> None:
        if self.mixed and not (self.sandwich and self.samples >= 3 and not self.fixed_widths):
            raise UserError(
                "mixed sub-networks stand beside the full network and the narrowest: mixed needs sandwich, and three "
                "or more samples instead of fixed_widths"
            )
        if self.mixed_depth != 1 and not self.mixed:
            raise UserError("mixed_depth leaves out blocks of mixed sub-networks: it needs mixed")
        widths = self.fixed_widths
        if widths is not None and not (widths and all(0 < width <= 1 for width in widths)):
            raise UserError(f"fixed_widths={widths} must be at least one width above 0 and at most 1")

    @property
    def supervised(self) -> bool:
        """Whether the base loss learns from labels."""
        return BASE_LOSSES[self.base_loss].target == "labels"

    @property
    def imitates_by_base_loss(self) -> bool:
        """Whether the base loss is imitation of a pretrained teacher (SEED)."""
        return BASE_LOSSES[self.base_loss].target == "pretrained_teacher"

    @property
    def teacher_shares(self) -> dict[TeacherLoss, float]:
        """The shares of every network's loss that are imitation of a pretrained teacher's features, by name."""
        shares: dict[TeacherLoss, float] = {name: getattr(self, name) for name in TEACHER_LOSSES}
        return {name: share for name, share in shares.items() if share}

    @property
    def base_share(self) -> float:
        """What these leave to the other losses."""
        return round(1 - sum(self.teacher_shares.values()), 12)

    @property
    def needs_pretrained_teacher(self) -> bool:
        return self.imitates_by_base_loss or bool(self.teacher_shares)

    @property
    def has_momentum_teacher(self) -> bool:
        return self.momentum_base or self.momentum_sub

    @property
    def predicts(self) -> bool:
        """Whether the base loss has a predictor."""
        return BASE_LOSSES[self.base_loss].predictor and self.base_share > 0

    @property
    def queues(self) -> bool:
        """Whether the base loss remembers the targets of earlier batches."""
        return BASE_LOSSES[self.base_loss].queue

    @property
    def views(self) -> int:
        """Views of an image in a step."""
        return BASE_LOSSES[self.base_loss].views if self.base_share else 1

    @property
    def base_terms(self) -> list[Term]:
        """What the full network's loss is a mixture of.

        >>> [(term.name, term.share) for term in Objective(teacher_features=0.25).base_terms]
        [('infonce', 0.75), ('teacher_features', 0.25)]
        """
        loss = BASE_LOSSES[self.base_loss]
        without: Target = "stopped" if loss.predictor else "outputs"
        target = loss.target or ("momentum_teacher" if self.momentum_base else without)
        return self._mixture(self.base_loss, loss, target, "h")

    @property
    def sub_terms(self) -> list[Term]:
        """What the sub-networks' loss is a mixture of.

        >>> [(term.name, term.target) for term in Objective(teacher_features=0.25).sub_terms]
        [('mse', 'momentum_teacher'), ('teacher_features', 'pretrained_teacher')]
        """
        if self.distill_loss == "none":
            return self.base_terms
        target: Target = "momentum_teacher" if self.momentum_sub else "full"
        head: Literal["h", "g"] = "h" if self.head == "shared" else "g"
        return self._mixture(self.distill_loss, DISTILL_LOSSES[self.distill_loss], target, head)

    def _mixture(self, name: str, loss: Loss, target: Target, head: Literal["h", "g"]) -> list[Term]:
        """Return a loss, and what all networks have beside it or in its place: imitation of a pretrained teacher."""
        terms = [Term(name, loss, target, head, self.base_share, self._temperature(loss))] if self.base_share else []
        for imitation, share in self.teacher_shares.items():
            loss = TEACHER_LOSSES[imitation]
            terms.append(Term(imitation, loss, "pretrained_teacher", "a", share, self._temperature(loss)))
        return terms

    def _temperature(self, loss: Loss) -> float | None:
        return None if loss.temperature is None else getattr(self, loss.temperature)

    def teacher_rate(self, step: int, steps: int) -> float:
        """Return how far the momentum teacher moves towards the network at a step, from 0, of all steps of a run."""
        share = (1 + math.cos(math.pi * (step / steps))) / 2 if self.teacher_schedule == "cosine" else 1.0
        if self.teacher_momentum is None:
            return 1 - momentum(self.teacher_memory, steps) ** share
        return (1 - self.teacher_momentum) * share

    def weight(self, width: Width) -> float:
        """Return that of the loss of the sub-network of a width, beside that of the full network."""
        return float(width) ** self.width_power

    @property
    def guidelines(self) -> dict[int, bool]:
        """Which of the paper's three guidelines for consistent guidance of the sub-networks it satisfies."""
        full, subs = (any(not term.loss.absolute for term in terms) for terms in (self.base_terms, self.sub_terms))
        imitating = self.distill_loss != "none" and self.base_share > 0
        return {1: full, 2: subs, 3: self.momentum_sub if imitating else self.needs_pretrained_teacher}


@cache
def choices() -> dict[str, tuple[str, ...]]:
    """Return the settings that are one of some words, and these."""
    hints = get_type_hints(Objective)
    return {name: get_args(kind) for name, kind in hints.items() if get_origin(kind) is Literal}


GUIDELINES = {
    1: "a base loss of relative distances (`base_loss='infonce'`)",
    2: "a distillation loss of relative distances (`distill_loss='infonce'`)",
    3: "a momentum teacher for the sub-networks (`momentum_sub=True`)",
}


def warning(objective: Objective) -> str | None:
    """Return what to say about a composition that satisfies none of the guidelines."""
    if objective.samples == 1 or any(objective.guidelines.values()):
        return None
    return (
        "warning: this objective satisfies none of the paper's three guidelines: "
        + "; ".join(f"({number}) {text}" for number, text in GUIDELINES.items())
        + ". In the paper, ResNet-18 on CIFAR-100 then collapsed, or at best reached 57.5 % at 1.0x with distillation "
        "through the shared predictor (app-ablation, cases 1 to 3), against 67.7 % for case 23"
    )
