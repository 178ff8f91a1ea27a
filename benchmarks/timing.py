"""Comparing speeds on a noisy machine: rivals take turns, and the best of several turns counts."""

from __future__ import annotations

import time
from collections.abc import Callable


def best_seconds(rivals: dict[str, Callable[[], object]], turns: int = 7) -> dict[str, float]:
    """The shortest time of each rival, in seconds, after a turn that does not count."""
    best = dict.fromkeys(rivals, float("inf"))
    for turn in range(turns + 1):
        for name, job in rivals.items():
            started = time.perf_counter()
            job()
            if turn:
                best[name] = min(best[name], time.perf_counter() - started)
    return best
