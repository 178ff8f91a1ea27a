"""Limits on connections that uvicorn has no settings for: how many, how slow, and how much of an answer they leave."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

EVERY = 0.25
"""Seconds between two looks at the connections."""
HEAD_SECONDS = 10.0
"""Within which the head of a request must arrive."""
LOG = logging.getLogger("us3l.serving")


@dataclass
class Since:
    """When a connection was last seen as it should be."""

    opened: float
    requesting: float
    """It had sent the head of a request, or was idle between two requests."""
    taken: float
    """It had taken all that was sent to it."""


class ConnectionGuard:
    """Closes connections that hold the service up, a few times a second.

    Args:
        connections: Those of the server, as uvicorn keeps them.
        most: Connections at once.
        most_per_address: Connections of one client's address.
        send_seconds: Within which a client must have taken an answer.
        clock: Seconds.
    """

    def __init__(
        self,
        connections: set[Any],
        most: int,
        most_per_address: int,
        send_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connections, self._most, self._most_per_address = connections, most, most_per_address
        self._send_seconds, self._clock = send_seconds, clock
        self._since: WeakKeyDictionary[Any, Since] = WeakKeyDictionary()

    async def watch(self) -> None:
        """Look at the connections until the task is cancelled."""
        while True:
            self.sweep()
            await asyncio.sleep(EVERY)

    def sweep(self) -> None:
        """Close what is too slow, then what is too many."""
        now = self._clock()
        for connection in list(self._connections):
            since = self._since.setdefault(connection, Since(now, now, now))
            if not unsent_bytes(connection):
                since.taken = now
            if not awaits_head(connection):
                since.requesting = now
            if now - since.taken > self._send_seconds:
                self._close(connection, "a client did not take its answer")
            elif now - since.requesting > HEAD_SECONDS:
                self._close(connection, "a client did not send its request")
        by_address: dict[str, list[Any]] = defaultdict(list)
        for connection in self._connections:
            by_address[connection.client[0] if connection.client else ""].append(connection)
        for connections in by_address.values():
            self._close_surplus(connections, self._most_per_address, "too many connections of one address")
        self._close_surplus(self._connections, self._most, "too many connections")

    def _close_surplus(self, connections: Iterable[Any], most: int, reason: str) -> None:
        """Close those that are blocked, then those that only wait, the oldest of each first."""
        open_ones = [connection for connection in connections if not connection.transport.is_closing()]
        order = sorted(open_ones, key=lambda one: (not unsent_bytes(one), is_busy(one), self._since[one].opened))
        for connection in order[: max(0, len(order) - most)]:
            self._close(connection, reason)

    def _close(self, connection: Any, reason: str) -> None:
        LOG.warning("connection closed: %s", reason)
        connection.transport.abort()  # `close` would wait for the client to take the rest


def unsent_bytes(connection: Any) -> int:
    """Return the bytes of answers that a client has not taken and the system cannot hold."""
    return int(connection.transport.get_write_buffer_size())


def is_busy(connection: Any) -> bool:
    """Return whether a request is being answered."""
    return connection.cycle is not None and not connection.cycle.response_complete


def awaits_head(connection: Any) -> bool:
    """Return whether a request has begun to arrive, or must; an idle connection has uvicorn's own time limit."""
    return not is_busy(connection) and connection.timeout_keep_alive_task is None


class OncePerMinute(logging.Filter):
    """Lets one line per cause and minute pass. The next one says how many were left out.

    Args:
        clock: Seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is logged."""
        cause, now = (str(record.msg), str(record.args)), self._clock()
        first, suppressed = self._seen.get(cause, (-60.0, 0))
        if now - first < 60:
            self._seen[cause] = (first, suppressed + 1)
            return False
        if len(self._seen) > 1000:
            self._seen.clear()
        self._seen[cause] = (now, 0)
        if suppressed:
            record.msg = f"{record.msg} (and {suppressed} more like it)"
        return True
