"""The best width within budgets.

All networks that keep every budget compete, and the most accurate wins. Measured latencies are noisy and need not rise
with the width, which does not matter here: a larger budget only adds competitors, so the choice never gets worse, and
the figures of what is chosen were themselves within the budget.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from us3l.system.errors import UserError
from us3l.width import Width

Figure = str
BUDGETS: dict[Figure, str] = {
    "latency_ms": "latency, ms",
    "macs": "MACs",
    "params": "parameters",
    "size_mb": "size, MB",
    "memory_mb": "activations, MB",
}


@dataclass(frozen=True)
class Candidate:
    """One network, and what it costs."""

    width: Width
    figures: Mapping[Figure, float]
    accuracy: float | None = None
    backend: str | None = None


@dataclass(frozen=True)
class Choice:
    """The network chosen; when none fits, the one that comes nearest."""

    candidate: Candidate
    fits: bool
    by_accuracy: bool
    """Whether accuracy decided, or else the width."""
    margins: Mapping[Figure, float] = field(default_factory=dict)
    """What is left of each budget, in its own unit."""
    unknown: Width | None = None
    """The widest network that also fits, but was not evaluated, where accuracy decided and it is wider."""


def pick(
    candidates: Sequence[Candidate], budgets: Mapping[Figure, float], accuracy_at_least: float | None = None
) -> Choice:
    """The best of the candidates within all budgets.

    The best is the most accurate, and of equally accurate ones the narrowest; it is the widest when none was evaluated.
    Whether accuracy decides depends on the candidates only, not on the budgets.

    >>> table = [Candidate(width, {"latency_ms": 10 * width}) for width in (0.25, 0.5, 1.0)]
    >>> pick(table, {"latency_ms": 7}).candidate.width, pick(table, {"latency_ms": 1}).fits
    (0.5, False)
    """
    if not budgets:
        raise UserError(f"give at least one budget: {', '.join(BUDGETS)}")
    for name, budget in budgets.items():
        if not budget > 0:
            raise UserError(f"a budget of {budget:g} for {BUDGETS[name]} must be above 0")
    known = [candidate for candidate in candidates if candidate.figures.keys() >= budgets.keys()]
    if not known:
        raise UserError(f"no width has a figure for all of: {', '.join(BUDGETS[name] for name in budgets)}")
    evaluated = [candidate for candidate in known if candidate.accuracy is not None]
    if accuracy_at_least is not None and not evaluated:
        raise UserError("no width has an accuracy: evaluate the run first, or leave out `accuracy_at_least`")
    fitting = [candidate for candidate in known if within(candidate, budgets)]
    competing = [candidate for candidate in evaluated or known if reaches(candidate, accuracy_at_least)]
    best = min((candidate for candidate in competing if candidate in fitting), key=rank, default=None)
    chosen = best or min(
        evaluated or known, key=lambda missed: (excess(missed, budgets, accuracy_at_least), rank(missed))
    )
    wider = [other.width for other in fitting if other.accuracy is None and other.width > chosen.width]
    return Choice(
        chosen,
        fits=best is not None,
        by_accuracy=bool(evaluated),
        margins={name: budget - chosen.figures[name] for name, budget in budgets.items()},
        unknown=max(wider, default=None) if best and evaluated else None,
    )


def within(candidate: Candidate, budgets: Mapping[Figure, float]) -> bool:
    return all(candidate.figures[name] <= budget for name, budget in budgets.items())


def reaches(candidate: Candidate, accuracy_at_least: float | None) -> bool:
    return accuracy_at_least is None or (candidate.accuracy is not None and candidate.accuracy >= accuracy_at_least)


def excess(candidate: Candidate, budgets: Mapping[Figure, float], accuracy_at_least: float | None) -> float:
    """By how much it misses the demand that it misses most, relative to that demand."""
    missed = [candidate.figures[name] / budget - 1 for name, budget in budgets.items()]
    if accuracy_at_least:
        missed.append(1 - (candidate.accuracy or 0) / accuracy_at_least)
    return max(missed)


def rank(candidate: Candidate) -> tuple[Any, ...]:
    """Smaller is better; the latency only tells two backends of one width apart."""
    latency = candidate.figures.get("latency_ms", 0.0)
    if candidate.accuracy is None:
        return (-float(candidate.width), latency)
    return (-candidate.accuracy, candidate.width, latency)
