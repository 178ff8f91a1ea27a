"""Holding a latency target under changing load by moving the width."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import accumulate
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from us3l.deploy.latency import percentile
from us3l.system.errors import UserError
from us3l.system.files import write_json
from us3l.width import Width

if TYPE_CHECKING:
    import numpy as np

    from us3l.runtime.inputs import AnyImages
    from us3l.runtime.runtime import Predictions, Runtime

T = TypeVar("T")
LONGEST = 16  # times the patience: even after many failures, a wider network is tried again


@dataclass(frozen=True)
class Decision:
    """One move of the width."""

    time: float
    """Seconds since the start."""
    request: int
    """How many requests there had been."""
    p95_ms: float
    """Of the requests that led to the move."""
    old: Width
    new: Width


class Controller:
    """Chooses widths so that 95 % of the requests stay within a target. It has no clock and draws nothing at random.

    The load is how much longer requests take now than on the idle machine. The width falls when over a fifth of the
    last `window` requests or over a twentieth of `patience` requests missed the target: to the widest that should need
    at most `headroom` of the target under that load. It rises to the next width by the same rule, judged after each
    `patience` requests: what lies between `headroom` and the target moves nothing. A rise that does not last doubles
    the wait until the next.

    Args:
        latencies: Milliseconds by width, on the idle machine.
        target_ms: What 95 % of the requests should stay within.
        window: Requests that decide whether the width falls at once.
        patience: Requests that decide whether it falls or rises.
        headroom: Share of the target that a width should need at most.
    """

    def __init__(
        self,
        latencies: Mapping[Width, float],
        target_ms: float,
        window: int = 20,
        patience: int = 100,
        headroom: float = 0.8,
    ) -> None:
        if not target_ms > 0:
            raise UserError(f"target_ms={target_ms:g} must be above 0")
        if not (latencies and 0 < headroom < 1 and 0 < window <= patience):
            raise UserError("adaptive mode needs measured widths, 0 < headroom < 1 and 0 < window <= patience")
        for width, ms in latencies.items():
            if not 0 < ms < inf:
                raise UserError(f"a latency of {ms:g} ms at width {width:g} cannot be: measure again")
        # Measured with noise, but a wider network does not really cost less.
        widths = sorted(latencies)
        self.latencies = dict(zip(widths, accumulate((latencies[width] for width in widths), max), strict=True))
        self.target_ms, self.window, self.patience, self.headroom = target_ms, window, patience, headroom
        self.width = self.widest(load=1.0)
        self.decisions: list[Decision] = []
        self.requests = 0
        self.wait = patience  # requests before the width may rise
        self._settle()

    def observe(self, width: Width, latency_ms: float, now: float) -> Decision | None:
        """Take in one request's latency.

        Args:
            width: At which the request was computed.
            latency_ms: What it took.
            now: Seconds since the start, only noted in the decision.

        Returns:
            The move that it led to, if any.
        """
        self.requests += 1
        if width != self.width:
            return None  # began before the last move
        if not 0 < latency_ms < inf:
            return None  # a clock that was set back, or stood still
        self.recent.append(latency_ms)
        self.stayed += 1
        many, last = list(self.recent), list(self.recent)[-self.window :]
        # Of few requests, more must be over the target before it is not chance.
        if self.stayed >= self.window and percentile(last, 80) > self.target_ms:
            return self._fall(percentile(last, 95), now)
        # To look at every request would be to wait for the one unlucky, or lucky, stretch.
        if self.stayed % self.patience == 0 and percentile(many, 95) > self.target_ms:
            return self._fall(percentile(many, 95), now)
        if self.stayed % self.wait == 0:
            return self._rise(percentile(many, 95), now)
        return None

    def widest(self, load: float) -> Width:
        """The widest network that should stay within `headroom` of the target, or else the narrowest.

        Args:
            load: How many times as long as on the idle machine requests take.
        """
        fitting = [width for width, ms in self.latencies.items() if ms * load <= self.headroom * self.target_ms]
        return max(fitting, default=min(self.latencies))

    def _fall(self, p95_ms: float, now: float) -> Decision | None:
        new = self.widest(p95_ms / self.latencies[self.width])
        if new >= self.width:
            return None
        if self.decisions and self.decisions[-1].new > self.decisions[-1].old:
            lasted = self.stayed >= LONGEST * self.patience
            self.wait = self.patience if lasted else min(2 * self.wait, LONGEST * self.patience)
        return self._move(new, p95_ms, now)

    def _rise(self, p95_ms: float, now: float) -> Decision | None:
        if self.widest(p95_ms / self.latencies[self.width]) <= self.width:
            return None
        return self._move(min(width for width in self.latencies if width > self.width), p95_ms, now)

    def _move(self, new: Width, p95_ms: float, now: float) -> Decision:
        decision = Decision(now, self.requests, p95_ms, self.width, new)
        self.decisions.append(decision)
        self.width = new
        self._settle()
        return decision

    def _settle(self) -> None:
        self.recent: deque[float] = deque(maxlen=self.patience)
        self.stayed = 0


class Adaptive:
    """A runtime that chooses its width by itself; safe to call from many threads. Requests should be of like sizes.

    `width` is the present one, and `decisions` tells what was done when, and why.
    """

    def __init__(self, runtime: Runtime, controller: Controller) -> None:
        self.runtime, self.controller = runtime, controller
        self._started = time.perf_counter()
        self._lock = threading.Lock()

    @property
    def width(self) -> Width:
        return self.controller.width

    @property
    def decisions(self) -> list[Decision]:
        return list(self.controller.decisions)

    def embed(self, images: AnyImages) -> np.ndarray:
        """Features at the present width: see `Runtime.embed`."""
        return self._observed(self.runtime.embed, images)

    def predict(self, images: AnyImages) -> Predictions:
        """Classes at the present width: see `Runtime.predict`."""
        return self._observed(self.runtime.predict, images)

    def _observed(self, work: Callable[..., T], images: AnyImages) -> T:
        width = self.width
        started = time.perf_counter()
        found = work(images, width=width)
        ended = time.perf_counter()
        with self._lock:
            self.controller.observe(width, 1e3 * (ended - started), ended - self._started)
        return found

    def record(self) -> dict[str, Any]:
        """What it was to hold, what it knew, and what it did."""
        controller = self.controller
        return {
            "target_ms": controller.target_ms,
            "requests": controller.requests,
            "width": controller.width,
            "latencies": [{"width": width, "ms": ms} for width, ms in controller.latencies.items()],
            "decisions": [asdict(decision) for decision in self.decisions],
        }

    def save(self, path: str | Path) -> None:
        """Write the record as JSON, over an earlier one."""
        write_json(Path(path), self.record())
