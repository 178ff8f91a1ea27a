"""Latencies on a machine that has other things to do: the jobs take turns, so that noise hits all alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping
from math import ceil
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
TIMED = 4  # calls in each turn that count


def take_turns(
    jobs: Mapping[K, Callable[[], object]],
    turns: int,
    progress: Callable[[int], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[K, list[float]]:
    """Milliseconds of each job's calls. A turn begins with a call that does not count: it warms the caches."""
    found: dict[K, list[float]] = {key: [] for key in jobs}
    for _ in range(turns):
        for key, job in jobs.items():
            job()
            for _ in range(TIMED):
                started = clock()
                job()
                found[key].append(1e3 * (clock() - started))
            if progress:
                progress(1)
    return found


def percentile(values: list[float], percent: float) -> float:
    """The smallest value that this percentage of the values does not exceed.

    >>> percentile([5.0, 1.0, 3.0, 2.0, 4.0], 50), percentile([1.0] * 19 + [9.0], 95)
    (3.0, 1.0)
    """
    return sorted(values)[max(0, ceil(len(values) * percent / 100) - 1)]
