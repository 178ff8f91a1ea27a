"""What is minimised, as a row of values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal, get_args, get_origin, get_type_hints

from us3l.objective.scaling import memory
from us3l.system.errors import UserError
from us3l.width import Width

PAPER_STEPS = 400 * (50_000 // 512)
"""Of the paper's runs on CIFAR: 400 epochs of batches of 512."""

Part = Literal["imitation", "own", "relations", "teacher_features", "teacher_relations"]
"""What the loss of a network can be a mixture of; the last two are imitation of a pretrained teacher."""
ABSOLUTE = ("mse", "seed-mse", "teacher_features")
"""Losses that compare an output with its own target only."""


@dataclass(frozen=True)
class Objective:
    """A method as a composition: base loss, distillation loss, head, targets, sampling, regulariser.

    The defaults are US3L: InfoNCE for the full network, distillation from a momentum teacher for the sub-networks.
    """

    base_loss: Literal["infonce", "mse", "moco", "mocov3", "cross-entropy", "seed", "seed-mse"] = "infonce"
    """Loss of the full network. infonce: NT-Xent of the two views. mse: negative cosine similarity through a predictor
    (the paper's MSE). moco: InfoNCE against the momentum teacher, negatives from a queue. mocov3: the same through a
    predictor, negatives from the batch. cross-entropy: with labels. seed, seed-mse: imitate a pretrained --teacher."""
    distill_loss: Literal["own", "mse", "infonce", "nt-xent", "soft"] = "mse"
    """Loss of the sub-networks: the base loss on their own outputs, or imitation by any of these losses (infonce: the
    paper's equation 7, negatives are the other targets; nt-xent: the authors' code, also the other outputs; soft:
    cross-entropy with the target's class probabilities)."""
    own: float = 0.0
    """The share of the sub-networks' loss that is the base loss on their own outputs, besides imitation."""
    relations: float = 0.0
    """The share of the sub-networks' loss that is the imitation of similarities to the other samples of the batch."""
    relation_temperature: float = 0.1
    """Temperature of the target's similarities; the sub-network's have the temperature of the losses. Similarities to
    a pretrained teacher have it on both sides."""
    teacher_features: float = 0.0
    """The share of every network's loss, the full one's included, that is imitation of a pretrained --teacher's
    features, by their cosine; through a linear layer where dimensions differ."""
    teacher_relations: float = 0.0
    """The share of every network's loss that is imitation of a pretrained --teacher's similarities between the images
    of a batch. If the two shares are 1 together, nothing else is learned."""
    wider_teaches: bool = False
    """Let each sub-network learn from the next wider one on the same batch; the widest one keeps its usual target."""
    sub_weight: float = 1.0
    """Weight of the sub-networks' losses, relative to that of the full network."""
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
    """Temperature of a frozen teacher's similarities (SEED)."""
    queue: int = 32768
    """Targets of earlier batches that moco and seed remember."""
    teacher_momentum: float | None = 0.99
    """Share of itself that the teacher keeps at every step; the rest is the network's (None: see teacher_memory)."""
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
    lowest_from: float | None = None
    """The share of the steps after which the narrowest width is reached (default: three periods of equal length)."""
    mixed: float = 0.0
    """The share of the random sub-networks that have a width for each stage, as `us3l search` finds them, instead of
    one for all."""
    mixed_depth: float = 1.0
    """The least share of a stage's blocks that these keep, at least one block; 1 keeps all."""
    fixed_widths: tuple[float, ...] | None = None
    """Run exactly these widths on every batch instead of sampling: the widest is the base (S-Net)."""
    update: Literal["per-batch", "per-width"] = "per-batch"
    """One optimiser step for all widths (the paper's Algorithm 1), or one for each (the authors' code)."""
    sub_size: int | None = None
    """Resize the views that sub-networks see to this side in pixels, which makes them cheaper (default: the full
    network's size). Targets stay those of the full network's views."""
    sub_crop: float | None = None
    """Give sub-networks views of their own, whose crops cover at least this share of the image (default: they see the
    full network's views). Targets stay those of the full network's views."""
    sub_momentum: float | None = None
    """Momentum of the sub-networks' optimiser steps, which then also have an optimiser state of their own (default: one
    momentum and one state for the steps of all widths). It needs one update per width."""
    groups: int = 8
    """Groups of channels in the group regularisation."""
    alpha: float = 0.05
    """Each group of channels is decayed by this fraction less than the one before it; 0 is plain weight decay."""
    alpha_ramp: tuple[float, float] | None = None
    """Let alpha rise from 0 between these shares of training. The authors' code: 0 0.5 for ResNet-18; for ResNet-50 and
    MobileNetV2 0.5 0.5, so that alpha jumps to its full value halfway. The paper has no ramp."""

    product: Literal["student", "teacher", "both"] = "student"
    """Whose weights the run's model has: the trained network's, or those of its momentum teacher, an average of it over
    the last steps. both: the network's, and the teacher's in a folder of their own."""

    def __post_init__(self) -> None:
        for name, allowed in choices().items():
            if getattr(self, name) not in allowed:
                raise UserError(f"{name}={getattr(self, name)!r} must be one of {', '.join(map(repr, allowed))}")
        begin, end = self.alpha_ramp or (0.0, 1.0)
        alone = self.full_alone if self.max_first else 0.0
        checks = {
            f"head='shared' needs a predictor to share, which base_loss={self.base_loss!r} does not have": (
                self.head != "shared" or self.predicts
            ),
            f"head={self.head!r} serves imitation, so it needs distill_loss='mse', 'infonce' or 'nt-xent', and own + "
            "relations below 1; or head='none'": (
                self.head == "none"
                or (self.distill_loss in ("mse", "infonce", "nt-xent") and self.own + self.relations != 1)
            ),
            f"base_loss={self.base_loss!r} compares with the momentum teacher: it needs momentum_base": (
                self.base_loss not in ("moco", "mocov3") or self.momentum_base
            ),
            f"base_loss={self.base_loss!r} has targets other than a momentum teacher: it excludes momentum_base": (
                not (self.supervised or self.frozen_teacher) or not self.momentum_base
            ),
            f"base_loss={self.base_loss!r} has a frozen teacher: it excludes momentum_sub": (
                not self.frozen_teacher or not self.momentum_sub
            ),
            "distill_loss='soft' imitates class probabilities, which only base_loss='cross-entropy' has": (
                self.distill_loss != "soft" or self.supervised
            ),
            f"product={self.product!r} needs a momentum teacher: momentum_base or momentum_sub": (
                self.product == "student" or self.momentum_base or self.momentum_sub
            ),
            f"own={self.own} and relations={self.relations} are shares of a loss: not negative, together at most 1": (
                self.own >= 0 and self.relations >= 0 and self.own + self.relations <= 1
            ),
            "distill_loss='own' is the base loss already: set own=0, or distill_loss to a loss of imitation": (
                self.own == 0 or self.distill_loss != "own"
            ),
            f"teacher_features={self.teacher_features} and teacher_relations={self.teacher_relations} are shares of a "
            "loss: not negative, together at most 1": (
                min(self.teacher_features, self.teacher_relations) >= 0 and sum(self.taught.values()) <= 1
            ),
            f"base_loss={self.base_loss!r} has a pretrained teacher already: it excludes teacher_features and "
            "teacher_relations": not (self.frozen_teacher and self.taught),
            "teacher_features and teacher_relations of 1 together leave no other loss: they exclude momentum_base, "
            "momentum_sub and a head (method='imitate')": (
                "own" in self.base_shares or not (self.momentum_base or self.momentum_sub or self.head != "none")
            ),
            "relations compares embeddings, which base_loss='cross-entropy' does not have": (
                self.relations == 0 or not self.supervised
            ),
            "wider_teaches needs something to teach: distill_loss other than 'own', or relations": (
                not self.wider_teaches or bool(self.sub_shares.keys() - {"own", *self.taught})
            ),
            f"sub_weight={self.sub_weight} must be positive": self.sub_weight > 0,
            f"temperature={self.temperature}, teacher_temperature={self.teacher_temperature} and "
            f"relation_temperature={self.relation_temperature} must be positive": (
                min(self.temperature, self.teacher_temperature, self.relation_temperature) > 0
            ),
            f"queue={self.queue} must be at least 1": self.queue >= 1,
            f"alpha_ramp={self.alpha_ramp} must be two shares of training in order, from 0 to 1": 0
            <= begin
            <= end
            <= 1,
            f"teacher_momentum={self.teacher_momentum} must be from 0 to 1": (
                self.teacher_momentum is None or 0 <= self.teacher_momentum <= 1
            ),
            f"teacher_memory={self.teacher_memory} must be above 0": self.teacher_memory > 0,
            f"hidden={self.hidden}, predictor={self.predictor} and dim={self.dim} must be positive": (
                min(self.hidden, self.predictor, self.dim) > 0
            ),
            f"samples={self.samples} must be at least 1": self.samples >= 1,
            f"full_alone={self.full_alone} must be a share of training, from 0 to 1": 0 <= self.full_alone <= 1,
            "lowest_from says how fast the narrowest width is lowered: it needs gradual": (
                self.lowest_from is None or self.gradual
            ),
            f"lowest_from={self.lowest_from} must be a share of a run from {alone:g}, when sub-networks begin, to 1": (
                self.lowest_from is None or alone <= self.lowest_from <= 1
            ),
            f"mixed={self.mixed} must be a share of sub-networks, from 0 to 1": 0 <= self.mixed <= 1,
            f"mixed_depth={self.mixed_depth} must be a share of blocks, from 0 to 1": 0 <= self.mixed_depth <= 1,
            "mixed sub-networks stand beside the full network and the narrowest: mixed needs sandwich, and three or "
            "more samples instead of fixed_widths": (
                self.mixed == 0 or (self.sandwich and self.samples >= 3 and not self.fixed_widths)
            ),
            "mixed_depth leaves out blocks of mixed sub-networks: it needs mixed": self.mixed_depth == 1
            or self.mixed > 0,
            f"fixed_widths={self.fixed_widths} must be at least one width above 0 and at most 1": (
                self.fixed_widths is None
                or (len(self.fixed_widths) > 0 and all(0 < width <= 1 for width in self.fixed_widths))
            ),
            f"sub_size={self.sub_size} must be at least 4 pixels": self.sub_size is None or self.sub_size >= 4,
            f"sub_crop={self.sub_crop} must be a share of the image, above 0 and at most 1": (
                self.sub_crop is None or 0 < self.sub_crop <= 1
            ),
            f"sub_momentum={self.sub_momentum} must be at least 0 and below 1": 0 <= (self.sub_momentum or 0) < 1,
            "sub_momentum is for sub-networks that are updated separately: it needs update='per-width'": (
                self.sub_momentum is None or self.update == "per-width"
            ),
            f"groups={self.groups} must be at least 1": self.groups >= 1,
            f"alpha * groups = {self.alpha * self.groups:g} must not exceed 1, or weights would grow": (
                self.alpha * self.groups <= 1
            ),
        }
        for message, holds in checks.items():
            if not holds:
                raise UserError(message)

    @property
    def supervised(self) -> bool:
        return self.base_loss == "cross-entropy"

    @property
    def frozen_teacher(self) -> bool:
        """Whether a pretrained network gives the targets of the base loss."""
        return self.base_loss in ("seed", "seed-mse")

    @property
    def taught(self) -> dict[Part, float]:
        """The shares of every network's loss that are imitation of a pretrained teacher."""
        shares: dict[Part, float] = {
            "teacher_features": self.teacher_features,
            "teacher_relations": self.teacher_relations,
        }
        return {part: share for part, share in shares.items() if share}

    @property
    def predicts(self) -> bool:
        """Whether the base loss has a predictor."""
        return self.base_loss in ("mse", "mocov3", "seed-mse") and "own" in self.base_shares

    @property
    def queues(self) -> bool:
        return self.base_loss in ("moco", "seed")

    @property
    def views(self) -> int:
        """Views of an image in a step."""
        return 1 if self.supervised or self.base_loss == "seed" or "own" not in self.base_shares else 2

    @property
    def base_shares(self) -> dict[Part, float]:
        """What the full network's loss is a mixture of, and how much of each.

        >>> Objective(teacher_features=0.25).base_shares
        {'own': 0.75, 'teacher_features': 0.25}
        """
        rest = round(1 - sum(self.taught.values()), 12)
        own: dict[Part, float] = {"own": rest} if rest else {}
        return own | self.taught

    @property
    def sub_shares(self) -> dict[Part, float]:
        """What the sub-networks' loss is a mixture of, and how much of each.

        >>> Objective(own=0.25).sub_shares
        {'imitation': 0.75, 'own': 0.25}
        """
        rest: Part = "own" if self.distill_loss == "own" else "imitation"
        shares: dict[Part, float] = {"own": self.own, "relations": self.relations}
        shares = {rest: round(1 - self.own - self.relations, 12)} | {p: s for p, s in shares.items() if p != rest}
        untaught = self.base_shares.get("own", 0.0)
        return {part: untaught * share for part, share in shares.items() if untaught * share} | self.taught

    @property
    def base_losses(self) -> list[str]:
        """The names of the losses that the full network has."""
        return [self.loss_of(part) for part in self.base_shares]

    @property
    def sub_losses(self) -> list[str]:
        """The names of the losses that sub-networks have in the end."""
        return [self.loss_of(part) for part in self.sub_shares]

    def loss_of(self, part: Part) -> str:
        """The name of a part of a network's loss: that of a base loss, of a distillation loss, or the part's own."""
        return {"own": self.base_loss, "imitation": self.distill_loss}.get(part, part)

    def gradient_scale(self, part: Part) -> float:
        """What undoes the temperature's factor in the gradient of a part of the sub-networks' loss."""
        if part == "teacher_relations":
            return self.relation_temperature
        return 1.0 if self.loss_of(part) in (*ABSOLUTE, "cross-entropy", "soft") else self.temperature

    def weight(self, width: Width) -> float:
        """Of the loss of the sub-network of a width, beside that of the full network."""
        return self.sub_weight * float(width) ** self.width_power

    @property
    def guidelines(self) -> dict[int, bool]:
        """Which of the paper's three guidelines for consistent guidance of the sub-networks it satisfies."""
        imitating = bool(self.sub_shares.keys() - {"own", *self.taught})
        frozen = self.frozen_teacher or bool(self.taught)
        stable = self.momentum_sub and not self.wider_teaches if imitating else frozen
        full, subs = (any(name not in ABSOLUTE for name in names) for names in (self.base_losses, self.sub_losses))
        return {1: full, 2: subs, 3: stable}


@cache
def choices() -> dict[str, tuple[str, ...]]:
    """The settings that are one of some words, and these."""
    hints = get_type_hints(Objective)
    return {name: get_args(kind) for name, kind in hints.items() if get_origin(kind) is Literal}


GUIDELINES = {
    1: "a base loss of relative distances (`base_loss='infonce'`)",
    2: "a distillation loss of relative distances (`distill_loss='infonce'`)",
    3: "a momentum teacher for the sub-networks (`momentum_sub=True`)",
}


def warning(objective: Objective) -> str | None:
    """What to say about a composition that satisfies none of the guidelines."""
    if objective.samples == 1 or any(objective.guidelines.values()):
        return None
    return (
        "warning: this objective satisfies none of the paper's three guidelines: "
        + "; ".join(f"({number}) {text}" for number, text in GUIDELINES.items())
        + ". In the paper, ResNet-18 on CIFAR-100 then collapsed, or at best reached 57.5 % at 1.0x with distillation "
        "through the shared predictor (app-ablation, cases 1 to 3), against 67.7 % for case 23"
    )
