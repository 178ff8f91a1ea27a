"""Since when a request may have been there before anybody looked at it."""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

ARRIVAL = "us3l.arrival"
"""Where the scope of a request has its `Arrival`, from when all of it has come."""

if TYPE_CHECKING:
    Base = selectors.SelectSelector
else:
    Base = selectors.DefaultSelector


class Arrival(NamedTuple):
    """What the server knows of a request that has come to its end."""

    time: float
    """Of `time.perf_counter`: when that was, at the earliest."""
    alone: bool
    """Nobody else is connected."""


class Arrivals(Base):
    """What an event loop waits with, which also notes since when that of which it tells may have been there.

    A loop works in rounds: it asks which sockets have something, works on all of them, and asks again. What is there as
    soon as it asks came during the last round. Under a flood a round takes long, and that is where requests wait.

    Args:
        clock: Seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__()
        self._clock = clock
        self._round = self.since = clock()
        """`since` is the earliest moment at which what is worked on now can have come."""
        self.rounds = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """What the loop calls."""
        found = super().select(0)
        waits = not found and timeout != 0
        if waits:
            found = super().select(timeout)
        now = self._clock()
        self.since = now if waits else self._round
        self._round = now
        self.rounds += 1
        return found
