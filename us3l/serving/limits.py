"""Limits that uvicorn and starlette have no settings for: foreign hosts, slow and too many connections, log lines."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

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
        order = sorted(open_ones, key=lambda each: (not unsent_bytes(each), is_busy(each), self._since[each].opened))
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


class KnownHosts:
    """Middleware that answers only requests for hosts it knows, and POSTs only of its own pages.

    Any web page can make a browser send requests, also to this machine (DNS rebinding). Addresses are always known:
    what an attacker can point at another machine is a name. So are localhost, the name of this machine, and the one
    that the service listens on.

    Args:
        app: What answers.
        host: The name or address that the service listens on.
        allowed: More names, such as that of a proxy in front of it.
    """

    def __init__(self, app: ASGIApp, host: str, allowed: Sequence[str] = ()) -> None:
        self.app = app
        self.allowed = {name.lower() for name in allowed}
        self.names = {"localhost", socket.gethostname().lower(), host.lower()} | self.allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reason = self.refusal(scope["method"], Headers(scope=scope)) if scope["type"] == "http" else None
        if reason is None:
            await self.app(scope, receive, send)
        else:
            await JSONResponse({"error": reason}, 403)(scope, receive, send)

    def refusal(self, method: str, headers: Headers) -> str | None:
        """Return why a request is refused, or None."""
        host, origin = headers.get("host", ""), headers.get("origin")
        if host and not self.knows(host_name(f"//{host}")):
            return "this service does not go by that name: allow it by the setting `allow_host`"
        same = origin is None or urlsplit(origin).netloc.lower() == host.lower() or host_name(origin) in self.allowed
        if method == "POST" and not same:
            return "this service takes no requests of other web pages: allow it by the setting `allow_host`"
        return None

    def knows(self, name: str) -> bool:
        """Return whether a host is one of ours."""
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in self.names
        return True


def host_name(address: str) -> str:
    """Return the host of an address, without its port; empty if there is none.

    >>> host_name("//localhost:8000"), host_name("http://[::1]:80"), host_name("null")
    ('localhost', '::1', '')
    """
    try:
        return (urlsplit(address).hostname or "").lower()
    except ValueError:
        return ""
