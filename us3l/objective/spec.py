"""What is minimised, as a row of values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args, get_type_hints

from us3l.errors import UserError


@dataclass(frozen=True)
class Objective:
    """A method as a composition: base loss, distillation loss, head, targets, sampling, regulariser.

    The defaults are US3L: InfoNCE for the full network, distillation from a momentum teacher for the sub-networks.
    """

    base_loss: Literal["infonce", "mse"] = "infonce"
    """Loss of the full network: InfoNCE, or negative cosine similarity through a predictor (the paper's MSE)."""
    distill_loss: Literal["own", "mse", "infonce"] = "mse"
    """Loss of the sub-networks: the base loss on their own outputs, or imitation by either loss."""
    head: Literal["none", "shared", "new"] = "new"
    """What sub-networks pass through to imitate: nothing, the base loss's predictor, or a head of their own."""
    momentum_base: bool = True
    """The full network's target is the momentum teacher, not itself."""
    momentum_sub: bool = True
    """The sub-networks' target is the momentum teacher, not the full network."""
    temperature: float = 0.5
    """Temperature of the InfoNCE base loss."""
    teacher_momentum: float = 0.99
    """The teacher becomes this much of itself and the rest of the network at every step."""
    hidden: int = 2048
    """Hidden units of the projector."""
    predictor: int = 2048
    """Hidden units of the predictor and of the distillation head."""
    dim: int = 2048
    """Dimension of the embedding that the losses compare."""
    samples: int = 3
    """Networks run on each batch, the full one included."""
    sandwich: bool = True
    """Always run the narrowest width of the moment, beside the full one."""
    max_first: bool = True
    """Train the full network alone in the first quarter."""
    gradual: bool = True
    """Lower the narrowest width step by step instead of at once."""
    fixed_widths: tuple[float, ...] | None = None
    """Run exactly these widths on every batch instead of sampling: the widest is the base (S-Net)."""
    update: Literal["per-batch", "per-width"] = "per-batch"
    """One optimiser step for all widths (the paper's Algorithm 1), or one for each (the authors' code)."""
    groups: int = 8
    """Groups of channels in the group regularisation."""
    alpha: float = 0.05
    """Each group of channels is decayed by this fraction less than the one before it; 0 is plain weight decay."""

    def __post_init__(self) -> None:
        for name in ("base_loss", "distill_loss", "head", "update"):
            allowed = get_args(get_type_hints(Objective)[name])
            if getattr(self, name) not in allowed:
                raise UserError(f"{name}={getattr(self, name)!r} must be one of {', '.join(map(repr, allowed))}")
        checks = {
            "head='shared' needs a predictor to share, which only base_loss='mse' has": (
                self.head != "shared" or self.base_loss == "mse"
            ),
            f"head={self.head!r} serves imitation, so it needs distill_loss='mse' or 'infonce'; or head='none'": (
                self.head == "none" or self.distill_loss != "own"
            ),
            f"temperature={self.temperature} must be positive": self.temperature > 0,
            f"teacher_momentum={self.teacher_momentum} must lie from 0 to 1": 0 <= self.teacher_momentum <= 1,
            f"hidden={self.hidden}, predictor={self.predictor} and dim={self.dim} must be positive": (
                min(self.hidden, self.predictor, self.dim) > 0
            ),
            f"samples={self.samples} must be at least 1": self.samples >= 1,
            f"fixed_widths={self.fixed_widths} must be at least one width above 0 and at most 1": (
                self.fixed_widths is None
                or (len(self.fixed_widths) > 0 and all(0 < width <= 1 for width in self.fixed_widths))
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
    def guidelines(self) -> dict[int, bool]:
        """Which of the paper's three guidelines for consistent guidance of the sub-networks it satisfies."""
        distill = self.base_loss if self.distill_loss == "own" else self.distill_loss
        return {1: self.base_loss != "mse", 2: distill != "mse", 3: self.momentum_sub and self.distill_loss != "own"}


GUIDELINES = {
    1: "a base loss of relative distances (--base-loss infonce)",
    2: "a distillation loss of relative distances (--distill-loss infonce)",
    3: "a momentum teacher for the sub-networks (--momentum-sub)",
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
