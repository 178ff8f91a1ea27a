"""Comparing speeds on a noisy machine: rivals take turns, and the best of several turns counts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

Job = Callable[[], object]


@dataclass(frozen=True)
class Row:
    """A figure against its limit or its rival, and what the ratio should be."""

    what: str
    ours: float
    rival: float
    unit: str
    target: float
    kind: Literal["at most", "at least"] = "at most"
    """Of ours / rival, or of rival / ours: how many times as fast."""
    note: str = ""

    @property
    def ratio(self) -> float:
        return self.ours / self.rival if self.kind == "at most" else self.rival / self.ours

    @property
    def met(self) -> bool:
        return self.ratio <= self.target if self.kind == "at most" else self.ratio >= self.target


def best_seconds(
    rivals: Mapping[str, Job], turns: int = 7, warm_up: bool = True, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """The shortest time of each rival, in seconds, usually after a turn that does not count.

    On one thread, `time.process_time` as the clock leaves out what other programs take.
    """
    best = dict.fromkeys(rivals, float("inf"))
    for turn in range(turns + warm_up):
        for name, job in rivals.items():
            started = clock()
            job()
            if turn >= warm_up:
                best[name] = min(best[name], clock() - started)
    return best


def best_of(compare: Callable[[], Row], rounds: int = 5) -> Row:
    """The best of each rival over several comparisons, each with networks and tensors made anew.

    One comparison may favour a rival by ten percent in all of its turns, perhaps by where things lie in memory: two
    copies of the same network do not differ less.
    """
    found = [compare() for _ in range(rounds)]
    ratios = sorted(row.ratio for row in found)
    ours, rival = min(row.ours for row in found), min(row.rival for row in found)
    note = f"{rounds} comparisons from {ratios[0]:.2f} to {ratios[-1]:.2f}"
    return replace(found[0], ours=ours, rival=rival, note=note)
