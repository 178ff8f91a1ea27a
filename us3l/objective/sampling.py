"""Which widths run on a batch: the sandwich rule and dynamic sampling."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from math import ceil
from random import Random

from us3l.objective.spec import Objective
from us3l.width import FULL, Width

LEVELS = 3  # of the narrowest width, when it is lowered gradually


def sample_widths(
    objective: Objective,
    min_width: float,
    step: int,
    steps: int,
    seed: int,
    stages: int = 1,
    blocks: Sequence[int] | None = None,
) -> list[Width]:
    """Draw the widths of one step out of `steps`, the base network's first.

    Drawn from the seed and the step alone: the same on every process, and the same after a resume.

    Args:
        objective: Says how many, and whether some are mixed.
        min_width: The narrowest width.
        step: Which one.
        steps: Of the whole run.
        seed: Of the run.
        stages: Of the network, for mixed sub-networks.
        blocks: Of each of its stages, if they can be left out.

    >>> sample_widths(Objective(), 0.25, step=0, steps=100, seed=0)
    [1.0]
    >>> sample_widths(Objective(), 0.25, step=99, steps=100, seed=0)[:2]
    [1.0, 0.25]
    """
    if objective.fixed_widths:
        return list(map(Width, sorted(objective.fixed_widths, reverse=True)))
    if min_width == 1:
        return [FULL]  # an individual network
    # Shares by exact division rather than in periods of floor(steps / 4): any number of steps is well behaved.
    if Fraction(step, steps) < alone(objective):
        return [FULL]
    lowest = lower_bound(objective, min_width, step, steps)
    random = Random(f"{seed}/{step}")
    draws = random_widths(objective, lowest, random)
    if objective.mixed:
        # The narrowest comes last: it has all blocks, so that all weights have gradients when processes exchange them.
        drawn = [mixed(objective, lowest, draw, random, stages, blocks) for draw in draws[: objective.samples - 2]]
        return [FULL, *drawn, Width(lowest)]
    widths = [FULL, Width(lowest), *draws][: objective.samples] if objective.sandwich else draws
    if not objective.sandwich:
        widths.sort(reverse=True)
    return widths


def random_widths(objective: Objective, lowest: float, random: Random) -> list[Width]:
    """Draw as many as there can be, each from the whole range, or each from an equal part of it."""
    if not objective.stratified:
        return [Width(random.uniform(lowest, 1.0)) for _ in range(objective.samples)]
    count = max(0, objective.samples - 2) if objective.sandwich else objective.samples
    edges = [1.0 - (1.0 - lowest) * part / count for part in range(count, 0, -1)] + [1.0]
    return [Width(random.uniform(low, high)) for low, high in pairwise(edges)]


def mixed(
    objective: Objective, lowest: float, draw: Width, random: Random, stages: int, blocks: Sequence[int] | None
) -> Width:
    """Draw a sub-network with a width for each stage, and fewer blocks; or return the plain one that was drawn."""
    if random.random() >= objective.mixed:
        return draw
    widths = [max(lowest, round(random.uniform(lowest, 1.0), 3)) for _ in range(stages)]
    least = [max(1, ceil(objective.mixed_depth * most)) for most in blocks or ()]
    depths = [random.randint(few, most) for few, most in zip(least, blocks or (), strict=True)]
    return Width(widths, depths or None)


def lower_bound(objective: Objective, min_width: float, step: int, steps: int) -> float:
    """Return the narrowest width that sampling has reached: 0.75, 0.5, 0.25 in turn, when it is lowered gradually."""
    if objective.fixed_widths:
        return min(objective.fixed_widths)
    if not objective.gradual:
        return min_width
    done, begin = Fraction(step, steps), alone(objective)
    end = begin + (1 - begin) * Fraction(LEVELS - 1, LEVELS)  # equal periods for all levels
    if done < begin:
        return 1.0
    if done >= end:
        return min_width  # itself: rounding would fall a hair below it, for 0.2 as an example
    reached = 1 + (LEVELS - 1) * (done - begin) // (end - begin)
    return 1 - (1 - min_width) * int(reached) / LEVELS


def alone(objective: Objective) -> Fraction:
    """Return the share of a run in which the full network trains alone at first."""
    return share(objective.full_alone) if objective.max_first else Fraction(0)


def share(value: float) -> Fraction:
    """Exactly as people write it: 0.1 is a tenth."""
    return Fraction(str(value))
