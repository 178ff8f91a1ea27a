"""The service on a socket: connections, signals, and an end that answers what was accepted."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import signal
import socket
import threading
import warnings
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from us3l.errors import Caution, UserError
from us3l.serving.application import application
from us3l.serving.service import Service

LOG = logging.getLogger("us3l.serving")
LONGEST_HEAD = 2**16
"""Bytes of a request before its body."""
HEAD_SECONDS = 10.0
"""Within which they must arrive."""
KEEP_ALIVE = 30
BUSY = b'{"error":"the service is busy"}'
BACKLOG = 512


class Connection(HttpToolsProtocol):
    """A connection that is closed if the head of a request takes too long, or is too long."""

    service: Service

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.head = 0
        self.impatient: asyncio.TimerHandle | None = None
        self.expect_head()

    def expect_head(self) -> None:
        self.inside_head = True
        if self.impatient is None:
            self.impatient = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def relax(self) -> None:
        self.inside_head, self.head = False, 0
        if self.impatient is not None:
            self.impatient.cancel()
            self.impatient = None

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.expect_head()

    def on_headers_complete(self) -> None:
        self.relax()
        # What comes too late is refused at the least cost: else refusals would take the time of answers.
        self.app = self.config.loaded_app
        kind = next((value for name, value in self.headers if name == b"content-type"), b"")
        if self.parser.get_method() == b"POST" and self.service.hopeless(self.url, kind):
            self.app = self.refuse
        super().on_headers_complete()

    async def refuse(self, _: Any, __: Any, send: Callable[[Any], Awaitable[None]]) -> None:
        self.service.watch.refused("lag")
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(BUSY)),
            (b"retry-after", b"1"),
        ]
        await send({"type": "http.response.start", "status": 503, "headers": headers})
        await send({"type": "http.response.body", "body": BUSY})

    def data_received(self, data: bytes) -> None:
        if self.inside_head:
            self.head += len(data)
        super().data_received(data)
        if self.inside_head and self.head > LONGEST_HEAD and not self.transport.is_closing():
            self.send_400_response("The head of the request is too long.")

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
        settings: dict[str, Any] = {
            "http": type("ServiceConnection", (Connection,), {"service": service}),
            "ws": "none", "lifespan": "off", "log_config": None, "access_log": False, "server_header": False,
            "proxy_headers": False, "timeout_keep_alive": KEEP_ALIVE, "backlog": BACKLOG, "loop": "asyncio",
            "timeout_graceful_shutdown": max(1, round(min(grace, 60))),
        }  # fmt: skip
        self.server = Server(uvicorn.Config(application(service), **settings))
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # it tells of every request that it cannot parse

    def run(self, ready: Callable[[], None] | None = None) -> None:
        """Prepare the model, and serve until `stop`, SIGINT or SIGTERM; SIGHUP loads the model again.

        Args:
            ready: Called, in another thread, when requests are taken.
        """
        asyncio.run(self._run(ready))

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
        watching = asyncio.create_task(self.service.watch_lag())
        await self.server.serve([self.socket])
        watching.cancel()
        await asyncio.to_thread(self.service.stop)
        if trouble:
            raise trouble[0]

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
