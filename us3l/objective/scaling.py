"""The rule by which a short run is a scaled-down long one, for the one value that the paper states per step.

A teacher's momentum of 0.99 averages over about a hundred steps: a quarter of a percent of the paper's 38,800, but
almost half of 230. A short run that is to behave like the long one keeps the share, its memory, and not the momentum.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from us3l.objective.spec import Objective


def memory(momentum: float, steps: int) -> float:
    """Return the share of a run over which a moving average reaches back (its time constant).

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

    Args:
        memory: The share, above 0.
        steps: All steps of the run.

    >>> share = memory(0.99, 38_800)
    >>> [round(momentum(share, steps), 3) for steps in (38_800, 2_145, 230)]
    [0.99, 0.834, 0.184]
    """
    return math.exp(-1 / (memory * steps))


def teacher_rate(objective: Objective, step: int, steps: int) -> float:
    """Return how far the momentum teacher moves towards the network at a step: 1 - its momentum.

    Args:
        objective: Whose `teacher_momentum` counts, or else its `teacher_memory`; along its `teacher_schedule`.
        step: Counted from 0.
        steps: All steps of the run.
    """
    share = (1 + math.cos(math.pi * (step / steps))) / 2 if objective.teacher_schedule == "cosine" else 1.0
    if objective.teacher_momentum is None:
        return 1 - momentum(objective.teacher_memory, steps) ** share
    return (1 - objective.teacher_momentum) * share
