"""What `us3l pick` does: the best of a run's widths within budgets.

All networks that keep every budget compete, and the most accurate wins. Measured latencies are noisy and need not rise
with the width, which does not matter here: a larger budget only adds competitors, so the choice never gets worse, and
the figures of what is chosen were themselves within the budget.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from us3l.data.preprocessing import Preprocessing
from us3l.deploy.accuracies import Accuracies, best_searched, by_agreement, read_accuracies, searched
from us3l.deploy.deployment_settings import BUDGETS, PickSettings
from us3l.deploy.profiling import all_costs, costs_of
from us3l.run import Run
from us3l.run.profiles import PROFILES, Profile, read_profile
from us3l.slimmable import Slimmable
from us3l.system.errors import UserError
from us3l.width import Width

INT8 = "-int8"
"""How the names of backends end that run files in INT8. No accuracy is known of these: `us3l evaluate` measures the
float network."""


@dataclass(frozen=True)
class Candidate:
    """One network, and what it costs."""

    width: Width
    figures: Mapping[str, float]
    accuracy: float | None = None
    backend: str | None = None


@dataclass(frozen=True)
class Choice:
    """The network chosen; when none fits, the one that comes nearest."""

    candidate: Candidate
    fits: bool
    by_accuracy: bool
    """Whether accuracy decided, or else the width."""
    margins: Mapping[str, float] = field(default_factory=dict)
    """What is left of each budget, in its own unit."""
    unknown: Candidate | None = None
    """The widest network that also fits, but was not evaluated, where accuracy decided and it is wider."""


def best_within(
    candidates: Sequence[Candidate], budgets: Mapping[str, float], accuracy_at_least: float | None = None
) -> Choice:
    """The best of the candidates within all budgets.

    The best is the most accurate, and of equally accurate ones the narrowest; it is the widest when none was evaluated.
    Whether accuracy decides depends on the candidates only, not on the budgets.

    >>> table = [Candidate(width, {"latency_ms": 10 * width}) for width in (0.25, 0.5, 1.0)]
    >>> best_within(table, {"latency_ms": 7}).candidate.width, best_within(table, {"latency_ms": 1}).fits
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
        raise UserError(
            "no width has an accuracy (files in INT8 have none of their own): evaluate the run first, or leave out "
            "`accuracy_at_least`"
        )
    fitting = [candidate for candidate in known if within(candidate, budgets)]
    competing = [candidate for candidate in evaluated or known if reaches(candidate, accuracy_at_least)]
    best = min((candidate for candidate in competing if candidate in fitting), key=rank, default=None)
    chosen = best or min(
        evaluated or known, key=lambda missed: (excess(missed, budgets, accuracy_at_least), rank(missed))
    )
    wider = [other for other in fitting if other.accuracy is None and other.width > chosen.width]
    return Choice(
        chosen,
        fits=best is not None,
        by_accuracy=bool(evaluated),
        margins={name: budget - chosen.figures[name] for name, budget in budgets.items()},
        unknown=max(wider, key=lambda other: other.width, default=None) if best and evaluated else None,
    )


def within(candidate: Candidate, budgets: Mapping[str, float]) -> bool:
    return all(candidate.figures[name] <= budget for name, budget in budgets.items())


def reaches(candidate: Candidate, accuracy_at_least: float | None) -> bool:
    return accuracy_at_least is None or (candidate.accuracy is not None and candidate.accuracy >= accuracy_at_least)


def excess(candidate: Candidate, budgets: Mapping[str, float], accuracy_at_least: float | None) -> float:
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


@dataclass(frozen=True)
class Picked:
    """The width chosen, and what it was chosen by."""

    choice: Choice
    accuracies: Accuracies | None
    budgets: Mapping[str, float]
    batch_size: int
    percentile: str
    accuracy_at_least: float | None
    device: str | None

    @property
    def width(self) -> Width:
        """The width chosen."""
        return self.choice.candidate.width

    @property
    def fits(self) -> bool:
        """Whether it is within all budgets; if not, it is the nearest."""
        return self.choice.fits

    @property
    def ranked_by(self) -> str:
        """What "best" means here: an accuracy and its data, or just the width."""
        return self.accuracies.described if self.choice.by_accuracy and self.accuracies else "width"

    @property
    def title(self) -> str:
        """The choice in one sentence."""
        plain = self.to_plain()
        on = "{device}, {backend}, batch {batch}, {percentile}".format(**plain)
        width = f"{self.width:g}x on {on}" if plain["backend"] else f"{self.width:g}x"
        if self.fits:
            return f"{width}: the best within the budget, by {self.ranked_by}"
        return f"nothing fits; the nearest is {width}, by {self.ranked_by}"

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One dictionary, for pandas: the width chosen, its accuracy, and what it costs of each budget."""
        chosen = self.choice.candidate
        return [{"width": chosen.width.as_plain(), "fits": self.fits, "accuracy": chosen.accuracy, **chosen.figures}]

    def to_plain(self) -> dict[str, Any]:
        """The choice for machines."""
        chosen = self.choice.candidate
        timed = "latency_ms" in self.budgets
        return {
            "fits": self.fits,
            "width": chosen.width.as_plain(),
            "device": self.device if timed else None,
            "backend": chosen.backend if timed else None,
            "batch": self.batch_size,
            "percentile": self.percentile,
            "ranked_by": self.ranked_by,
            "accuracy": chosen.accuracy,
            "accuracy_at_least": self.accuracy_at_least,
            "figures": dict(chosen.figures),
            "budgets": dict(self.budgets),
            "margins": dict(self.choice.margins),
            "wider_but_not_evaluated": None if self.choice.unknown is None else self.choice.unknown.width.as_plain(),
        }


def pick_width(run: Run, settings: PickSettings) -> Picked:
    """Return the best width of a run within all budgets.

    The best is the most accurate; without accuracies the one that agrees most with the full network, if `us3l profile`
    compared them, or else the widest.

    Args:
        run: A run, a model's folder, or a network in memory, which has no latencies.
        settings: The budgets, and whose latencies and accuracies count.
    """
    budgets = settings.limits
    net = run.network
    profile = find_profile(run, settings.device, settings.latency_ms is not None)
    if profile is None:
        size = Preprocessing.of(net).size
        profile = Profile(size, all_costs(net, size))
    accuracies = read_accuracies(run, net, settings.data) or searched(run, net) or by_agreement(profile)
    profile = with_subnets(profile, net, [*(accuracies.percent if accuracies else ()), *best_searched(run, net)])
    if settings.accuracy_at_least is not None and (accuracies is None or accuracies.metric == "agreement"):
        raise UserError("no width has an accuracy: evaluate the run first, or leave out `accuracy_at_least`")
    batch = settings.batch_size or min(profile.batches(), default=1)
    if settings.latency_ms is not None:
        check_profiled(profile, settings.backend, batch)
    table = candidates(profile, accuracies, settings.backend, batch, settings.percentile)
    choice = best_within(table, budgets, settings.accuracy_at_least)
    device = profile.name or None
    return Picked(choice, accuracies, budgets, batch, settings.percentile, settings.accuracy_at_least, device)


def candidates(
    profile: Profile,
    accuracies: Accuracies | None,
    backend: str | None = None,
    batch: int | None = None,
    percentile: str = "p95",
) -> list[Candidate]:
    """What `pick` chooses from: each width, on each backend that it was timed on."""
    percent = accuracies.percent if accuracies else {}
    found = []
    for row in profile.costs:
        figures = {
            "macs": row.macs,
            "params": row.params,
            "size_mb": row.bytes / 1e6,
            "memory_mb": row.memory * (batch or 1) / 1e6,
        }
        timed = [
            latency
            for latency in profile.latencies
            if latency.width == row.width and latency.batch == batch and backend in (None, latency.backend)
        ]
        found += [
            Candidate(
                row.width,
                figures | {"latency_ms": getattr(latency, f"{percentile}_ms")},
                None if latency.backend.endswith(INT8) else percent.get(row.width),
                latency.backend,
            )
            for latency in timed
        ] or [Candidate(row.width, figures, percent.get(row.width))]
    return found


def with_subnets(profile: Profile, net: Slimmable, widths: Iterable[Width]) -> Profile:
    """The profile with the costs of those networks that it does not have, but that were evaluated or found."""
    known = {row.width for row in profile.costs}
    others = [width for width in dict.fromkeys(widths) if width not in known]
    return replace(profile, costs=[*profile.costs, *(costs_of(net, width, profile.image_size) for width in others)])


def find_profile(run: Run, device: str | None, needed: bool) -> Profile | None:
    """The profile of the device; where latencies do not matter, none if it is not clear which."""
    known = PROFILES.names(run)
    if needed and not known:
        raise UserError(f"latencies are not measured yet: `us3l.profile({str(run.folder)!r})` first")
    if not needed and device is None and len(known) != 1:
        return None
    return read_profile(run, device)


def check_profiled(profile: Profile, backend: str | None, batch: int) -> None:
    if backend is not None and backend not in profile.backends():
        raise UserError(f"{profile.name} has no latency of {backend}: it has {', '.join(profile.backends())}")
    if batch not in profile.batches():
        there = ", ".join(map(str, profile.batches()))
        raise UserError(f"{profile.name} has no latency of batch {batch}: it has {there}")
