"""The service on a socket: connections, signals, and an end that answers what was accepted."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import signal
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from us3l.serving.application import Handlers, application
from us3l.serving.arrivals import ARRIVAL, Arrival, Arrivals
from us3l.serving.bodies import header
from us3l.serving.guarding import STILL, LoopGuard
from us3l.serving.service import TASKS, Service, late_ms
from us3l.system.errors import Caution, UserError

LOG = logging.getLogger("us3l.serving")
LONGEST_HEAD = 2**16
"""Bytes of a request before its body."""
HEAD_SECONDS = 10.0
"""Within which they must arrive."""
KEEP_ALIVE = 30
BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n"
    b'content-length: 31\r\n\r\n{"error":"the service is busy"}'
)
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
BACKLOG = 512


class OneWrite:
    """A transport that sends the head of an answer together with its body, where the server writes them one by one.

    Args:
        transport: The real one.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport, self._head = transport, b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if data.startswith(b"HTTP/") and data.endswith(b"\r\n\r\n") and not self._head and data != CONTINUE:
            self._head = data  # the body comes at once, even if it is empty
            return
        self.write_now(self._head + data)

    def write_now(self, data: bytes) -> None:
        """Send what needs no body any more."""
        self._head = b""
        self._transport.write(data)

    def close(self) -> None:
        if self._head:
            self.write(b"")
        self._transport.close()


class Connection(HttpToolsProtocol):
    """A connection that is closed if the head of a request takes too long or is too long, or if the rest of a request
    that is answered already does not come."""

    service: Service
    arrivals: Arrivals
    handlers: Handlers
    unread = False
    """The request was refused at its head; the rest of it is dropped."""
    early: list[bytes] | None = None
    """The body, as far as it has come, of a request of which nobody was told yet: see `answer_early`."""
    hasty = True
    """Whether one may be answered at once: one of those that come together, so that nobody waits for all of them."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(OneWrite(transport))  # type: ignore[arg-type]
        self.head = 0
        self.whole = True
        self.free_since = 0.0  # the clock: the next request cannot have come before the last was answered
        self.impatient: asyncio.TimerHandle | None = None
        self.expect_head()

    def expect_head(self) -> None:
        self.inside_head = True
        self.expect(HEAD_SECONDS)

    def expect(self, seconds: float) -> None:
        """End the connection unless it is told to `relax` within this time."""
        if self.impatient is None:
            self.impatient = self.loop.call_later(seconds, self.transport.close)

    def relax(self) -> None:
        self.inside_head, self.head = False, 0
        if self.impatient is not None:
            self.impatient.cancel()
            self.impatient = None

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.whole = self.unread = False
        self.inside_head = True  # if it does not come at once, it is waited for: see `data_received`

    def on_headers_complete(self) -> None:
        self.relax()
        if self.may_be_early():
            self.early = []
            return
        self.unread = self.refused()
        if not self.unread:
            super().on_headers_complete()

    def may_be_early(self) -> bool:
        """Whether a request, of which the head was read, can be answered as soon as all of it is there. It is the only
        one, of the only client, and asks for nothing unusual."""
        free = self.cycle is None or self.cycle.response_complete
        if not (self.hasty and free and len(self.connections) == 1 and self.service.scheduler.idle):
            return False
        if late_ms(self.arrived):
            return False
        path, _, query = self.url.partition(b"?")
        if path not in TASKS or b"#" in query or self.expect_100_continue or self.parser.should_upgrade():
            return False
        return self.parser.get_method() == b"POST"

    def answer_early(self) -> None:
        """Answer a request that has come whole, if it can be done at once; else it takes the usual way."""
        self.hasty = False
        assert self.early is not None
        arrived, (path, _, query) = self.arrived, self.url.partition(b"?")
        self.scope["method"], self.scope["path"], self.scope["query_string"] = "POST", path.decode("ascii"), query
        body = self.early[0] if len(self.early) == 1 else b"".join(self.early)
        response = self.handlers.answered_now(self.scope, body, arrived)  # type: ignore[arg-type]
        if response is None:
            self.take_usual_way()
            return
        self.early = None
        keep = self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive()
        content = [STATUS_LINE[response.status_code]]
        for name, value in self.server_state.default_headers + response.raw_headers:
            content += (name, b": ", value, b"\r\n")
        content += (b"\r\n" if keep else b"connection: close\r\n\r\n", bytes(response.body))
        self.transport.write_now(b"".join(content))  # type: ignore[attr-defined]
        if not keep:
            self.transport.close()
        self.on_response_complete()

    def take_usual_way(self) -> None:
        """Tell the application of a request that was held back."""
        parts, self.early = self.early or [], None
        super().on_headers_complete()
        for part in parts:
            super().on_body(part)

    def refused(self) -> bool:
        """Whether the request was refused already, at the least cost: else refusals would take the time of answers."""
        free = self.cycle is None or self.cycle.response_complete
        if not free or self.service.stopping or self.expect_100_continue or self.parser.get_method() != b"POST":
            return False
        path, _, query = self.url.partition(b"?")
        kind = header(self.headers, b"content-type")
        if not self.service.refused_unread(path, query, kind, self.arrived, self.arrivals.rounds):
            return False
        self.service.watch.refused("busy")
        self.service.watch.replied(path.decode("ascii"), 503)
        self.transport.write(BUSY)
        if not self.parser.should_keep_alive():
            self.transport.close()
        self.on_response_complete()
        return True

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.free_since = time.perf_counter()
        if not self.whole and not self.transport.is_closing():
            self.expect(self.service.settings.body_seconds)

    @property
    def arrived(self) -> float:
        """When what is being received came, at the earliest."""
        return max(self.arrivals.since, self.free_since)

    def on_body(self, body: bytes) -> None:
        if self.early is not None:
            self.early.append(body)
        elif not self.unread:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self.whole = True
        if self.impatient is not None:  # it was answered before it had come
            self.relax()
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(KEEP_ALIVE, self.timeout_keep_alive_handler)
        if self.early is not None:
            self.answer_early()
            if self.cycle is None or self.cycle.response_complete:
                return
        if not self.unread:
            self.scope[ARRIVAL] = Arrival(self.arrived, len(self.connections) == 1)  # type: ignore[literal-required]
            super().on_message_complete()

    def data_received(self, data: bytes) -> None:
        if self.inside_head:
            self.head += len(data)
        self.hasty = True
        super().data_received(data)
        if self.early is not None and not self.transport.is_closing():  # its rest has to be waited for
            self.take_usual_way()
        if not self.inside_head or self.transport.is_closing():
            return
        if self.head > LONGEST_HEAD:
            self.send_400_response("The head of the request is too long.")
        else:
            self.expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self.relax()
        super().connection_lost(exc)


class Server(uvicorn.Server):
    """Uvicorn's server, whose signals are ours."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Listening:
    """A service on a socket: `run` serves until it is asked to stop.

    Args:
        service: What answers.
        host: Its address, or 0.0.0.0 for all; by default only this machine can connect.
        port: 0 takes one that is free.
    """

    def __init__(self, service: Service, host: str = "127.0.0.1", port: int = 8000) -> None:
        self.service = service
        self.socket = listen(host, port)
        if not is_loopback(host) and service.settings.token is None:
            text = (
                f"{host} can be reached from other machines, and no `token_file` is given: anybody may use the service"
            )
            warnings.warn(text, Caution, stacklevel=2)
        address, number = self.socket.getsockname()[:2]
        self.address = f"http://{f'[{address}]' if ':' in address else address}:{number}"
        grace = service.settings.body_seconds + service.settings.deadline_ms / 1e3 * service.settings.max_images
        self.arrivals = Arrivals()
        self.hung: Callable[[], None] = lambda: None
        """Called, in another thread, if the event loop has stood still for half a minute: a network or an image that is
        computed there never ends. Only the end of the process helps then."""
        handlers = Handlers(service)
        known = {"service": service, "arrivals": self.arrivals, "handlers": handlers}
        settings: dict[str, Any] = {
            "http": type("ServiceConnection", (Connection,), known),
            "ws": "none", "lifespan": "off", "log_config": None, "access_log": False, "server_header": False,
            "proxy_headers": False, "timeout_keep_alive": KEEP_ALIVE, "backlog": BACKLOG, "loop": "asyncio",
            "timeout_graceful_shutdown": max(1, round(min(grace, 60))),
        }  # fmt: skip
        self.server = Server(uvicorn.Config(application(service, handlers), **settings))
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # it tells of every request that it cannot parse

    def run(self, ready: Callable[[], None] | None = None) -> None:
        """Prepare the model, and serve until `stop`, SIGINT or SIGTERM; SIGHUP loads the model again.

        Args:
            ready: Called, in another thread, when requests are taken.
        """
        with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(self.arrivals)) as runner:
            runner.run(self._run(ready))

    async def _run(self, ready: Callable[[], None] | None) -> None:
        trouble: list[BaseException] = []

        def prepare() -> None:
            try:
                self.service.prepare()
                if ready:
                    ready()
            except BaseException as error:  # told when the server has stopped
                trouble.append(error)
                self.stop()

        self._receive_signals()
        preparing = threading.Thread(target=prepare, name="us3l-serving-prepare", daemon=True)
        preparing.start()
        guard = LoopGuard(self._give_up)
        guard.watch(asyncio.get_running_loop())
        try:
            await self.server.serve([self.socket])
        finally:
            guard.end()
        await asyncio.to_thread(self.service.stop)
        if trouble:
            raise trouble[0]

    def _give_up(self) -> None:
        LOG.critical("nothing was answered for %.0f s: a computation hangs", STILL)
        self.hung()

    def _receive_signals(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.stop)
        loop.add_signal_handler(signal.SIGHUP, self.reload)

    def stop(self) -> None:
        """Take no more requests, and end when those that were accepted are answered; asked twice, end at once."""
        if self.service.stopping:
            self.server.force_exit = True
        self.service.stopping = True
        self.server.should_exit = True

    def reload(self) -> None:
        """Load the model again while requests go on, unless that is under way already."""
        if self.service.ready and not any(thread.name == "us3l-serving-reload" for thread in threading.enumerate()):
            threading.Thread(target=self.service.reload, name="us3l-serving-reload", daemon=True).start()


def listen(host: str, port: int) -> socket.socket:
    """A socket that takes connections."""
    if not 0 <= port < 2**16:
        raise UserError(f"`port` must be 0 to 65535, not {port}")
    try:
        (kind, _, _, _, address), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # Named by its protocol, asyncio sends at once; else an answer in two parts would wait 40 ms for the client.
        found = socket.socket(kind, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    except OSError as error:
        raise UserError(f"`host` {host}: {error.strerror}") from None
    try:
        if os.name == "posix":
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(BACKLOG)  # those who connect before it runs wait
        found.setblocking(False)
    except OSError as error:
        found.close()
        raise UserError(f"cannot listen on {host}, port {port}: {error.strerror}; choose another `port`") from None
    return found


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine only.

    >>> is_loopback("localhost"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
