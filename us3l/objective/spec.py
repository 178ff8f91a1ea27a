"""What is minimised, as a row of values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from us3l.errors import UserError


@dataclass(frozen=True)
class Objective:
    """US3L: InfoNCE for the full network, distillation from a momentum teacher for the sub-networks."""

    temperature: float = 0.5
    """Temperature of the InfoNCE base loss."""
    teacher_momentum: float = 0.99
    """The teacher becomes this much of itself and the rest of the network at every step."""
    hidden: int = 2048
    """Hidden units of the projector and of the distillation head."""
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
    update: Literal["per-batch", "per-width"] = "per-batch"
    """One optimiser step for all widths (the paper's Algorithm 1), or one for each (the authors' code)."""
    groups: int = 8
    """Groups of channels in the group regularisation."""
    alpha: float = 0.05
    """Each group of channels is decayed by this fraction less than the one before it; 0 is plain weight decay."""

    def __post_init__(self) -> None:
        checks = {
            f"temperature={self.temperature} must be positive": self.temperature > 0,
            f"teacher_momentum={self.teacher_momentum} must lie from 0 to 1": 0 <= self.teacher_momentum <= 1,
            f"hidden={self.hidden} and dim={self.dim} must be positive": self.hidden > 0 and self.dim > 0,
            f"samples={self.samples} must be at least 1": self.samples >= 1,
            f"update={self.update!r} must be 'per-batch' or 'per-width'": self.update in ("per-batch", "per-width"),
            f"groups={self.groups} must be at least 1": self.groups >= 1,
            f"alpha * groups = {self.alpha * self.groups:g} must not exceed 1, or weights would grow": (
                self.alpha * self.groups <= 1
            ),
        }
        for message, holds in checks.items():
            if not holds:
                raise UserError(message)
