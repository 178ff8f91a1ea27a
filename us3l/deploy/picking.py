"""What `us3l pick` does: the best of a run's widths within budgets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from us3l.data.preprocessing import Preprocessing
from us3l.deploy.deployment_settings import PickSettings
from us3l.deploy.evaluated import Accuracies, best_searched, read_accuracies, searched
from us3l.deploy.pick import Choice, pick
from us3l.deploy.profile import all_costs, candidates, costs_of
from us3l.deploy.profiling import by_agreement
from us3l.run import Run
from us3l.run.profiles import PROFILES, Profile, read_profile
from us3l.slimmable import Slimmable
from us3l.system.errors import UserError
from us3l.width import Width


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
            "wider_but_not_evaluated": None if self.choice.unknown is None else self.choice.unknown.as_plain(),
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
    choice = pick(table, budgets, settings.accuracy_at_least)
    device = profile.name or None
    return Picked(choice, accuracies, budgets, batch, settings.percentile, settings.accuracy_at_least, device)


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
