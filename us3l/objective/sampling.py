"""Which widths run on a batch: the sandwich rule and dynamic sampling."""

from __future__ import annotations

from random import Random

from us3l.objective.spec import Objective

PERIODS = 4


def sample_widths(objective: Objective, min_width: float, step: int, steps: int, seed: int) -> list[float]:
    """The widths of one step out of `steps`, the base network's first.

    Drawn from the seed and the step alone: the same on every process, and the same after a resume.

    >>> sample_widths(Objective(), 0.25, step=0, steps=100, seed=0)
    [1.0]
    >>> sample_widths(Objective(), 0.25, step=99, steps=100, seed=0)[:2]
    [1.0, 0.25]
    """
    if objective.fixed_widths:
        return sorted(objective.fixed_widths, reverse=True)
    if min_width == 1:
        return [1.0]  # an individual network
    # Quarters by exact division rather than in periods of floor(steps / 4): any number of steps is well behaved.
    quarter = PERIODS * step // steps
    if objective.max_first and quarter == 0:
        return [1.0]
    lowest = lower_bound(objective, min_width, step, steps)
    random = Random(f"{seed}/{step}")
    draws = [random.uniform(lowest, 1.0) for _ in range(objective.samples)]
    if objective.sandwich:
        return [1.0, lowest, *draws][: objective.samples]
    return sorted(draws, reverse=True)


def lower_bound(objective: Objective, min_width: float, step: int, steps: int) -> float:
    """The narrowest width that sampling has reached: 0.75, 0.5, 0.25 in turn, when it is lowered gradually."""
    if objective.fixed_widths:
        return min(objective.fixed_widths)
    if not objective.gradual:
        return min_width
    skipped = 0 if objective.max_first else 1  # the period in which the full network trains alone
    reached = (PERIODS - skipped) * step // steps + skipped  # 1, 2, 3; and 0 while the full network trains alone
    if reached == PERIODS - 1:
        return min_width  # itself: rounding would fall a hair below it, for 0.2 as an example
    return 1 - (1 - min_width) * reached / (PERIODS - 1)
