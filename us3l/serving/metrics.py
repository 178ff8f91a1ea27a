"""What a service counts: for Prometheus, and the last minutes for its page."""

from __future__ import annotations

import math
import time
from collections import Counter as Tally
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from us3l.width import Width

EVERY = 5.0  # seconds of a point of the curve
POINTS = 60
FINE = 40  # steps of a factor of e, in which latencies are counted: 2.5 % each
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass
class Span:
    """What happened in a few seconds; latencies are per image, as the target is."""

    number: int
    width: float
    latencies: Tally[int] = field(default_factory=Tally)
    refused: int = 0

    def p95_ms(self) -> float | None:
        """Return the 95th percentile, as exact as the steps in which latencies are counted."""
        wanted = math.ceil(0.95 * self.latencies.total())
        for step in sorted(self.latencies):
            wanted -= self.latencies[step]
            if wanted <= 0:
                return round(math.exp(step / FINE), 3)
        return None


class ServiceWatch:
    """Counts requests, latencies, widths and refusals.

    Args:
        width: The present one of requests that name none.
        waiting: Images in the queue.
        clock: Seconds.
    """

    def __init__(
        self, width: Callable[[], float], waiting: Callable[[], int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.registry = CollectorRegistry()
        self._width, self._clock = width, clock
        self._spans: deque[Span] = deque(maxlen=POINTS)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"us3l_{name}", text, labels, registry=self.registry)

        self.requests = counter("requests", "Requests by path and status", "path", "status")
        self.images = counter("images", "Images that were computed, by path and width", "path", "width")
        self.refusals = counter("refusals", "Requests that were refused, by cause", "cause")
        self.reloads = counter("reloads", "Models that were loaded while serving, by result", "result")
        self.latency = Histogram(
            "us3l_request_seconds",
            "From the request's arrival to its answer, by path and width",
            ("path", "width"),
            registry=self.registry,
            buckets=SECONDS,
        )
        self.batch = Histogram(
            "us3l_batch_images", "Images computed at once", registry=self.registry, buckets=(1, 2, 4, 8, 16, 32, 64)
        )
        Gauge("us3l_width", "Width of requests that name none", registry=self.registry).set_function(width)
        Gauge("us3l_queue_images", "Images that wait", registry=self.registry).set_function(waiting)
        ProcessCollector(registry=self.registry)

    def replied(self, path: str, status: int) -> None:
        """Count a request that got an answer of any kind."""
        self.requests.labels(path, str(status)).inc()

    def answered(self, path: str, width: Width, images: int, seconds: float) -> None:
        """Count a request that got its result."""
        self.latency.labels(path, f"{width:g}").observe(seconds)
        self.images.labels(path, f"{width:g}").inc(images)
        self._span().latencies[round(FINE * math.log(max(1e3 * seconds / images, 1e-3)))] += 1

    def refused(self, cause: str) -> None:
        """Count a request that got no result."""
        self.refusals.labels(cause).inc()
        self._span().refused += 1

    def _span(self) -> Span:
        number = int(self._clock() / EVERY)
        if not self._spans or self._spans[-1].number != number:
            self._spans.append(Span(number, self._width()))
        self._spans[-1].width = self._width()
        return self._spans[-1]

    def recent(self) -> dict[str, Any]:
        """Return the last minutes, a row for every few seconds in which something happened."""
        now = int(self._clock() / EVERY)
        return {
            "every_seconds": EVERY,
            "width": self._width(),
            "rows": [
                {
                    "seconds_ago": (now - span.number) * EVERY,
                    "requests": span.latencies.total(),
                    "p95_ms": span.p95_ms(),
                    "width": span.width,
                    "refused": span.refused,
                }
                for span in self._spans
                if now - span.number < POINTS
            ],
        }

    def text(self) -> bytes:
        """Return all metrics as Prometheus reads them."""
        return generate_latest(self.registry)
