"""The service on a socket: uvicorn with our limits, signals, and an end that answers what was accepted."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from us3l.serving.application import application
from us3l.serving.limits import ConnectionGuard, OncePerMinute
from us3l.serving.service import Service
from us3l.system.errors import Caution, UserError

LOG = logging.getLogger("us3l.serving")
LONGEST_HEAD = 2**16
"""Bytes of a request before its body."""
KEEP_ALIVE = 30
"""Seconds after which an idle connection is closed."""
BACKLOG = 512
SWITCH_SECONDS = 2e-4
"""For which a thread that computes may keep the event loop waiting; Python's 5 ms are long beside a refusal."""
LOOK_SECONDS = 0.02
"""Between two looks at how late the event loop is."""
SPARE_FILES = 40
"""Files that the process needs beside its connections."""


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
        self._reloading: asyncio.Task[bool] | None = None
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
            # h11 parses one request after another; httptools would make objects of all that a client has pipelined.
            "http": "h11", "h11_max_incomplete_event_size": LONGEST_HEAD, "ws": "none", "lifespan": "off",
            "log_config": None, "access_log": False, "server_header": False, "proxy_headers": False,
            "timeout_keep_alive": KEEP_ALIVE, "backlog": BACKLOG, "loop": "asyncio",
            "timeout_graceful_shutdown": max(1, round(min(grace, 60))),
        }  # fmt: skip
        self.server = Server(uvicorn.Config(application(service, host), **settings))
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # it tells of every request that it cannot parse

    def run(self, ready: Callable[[], None] | None = None) -> None:
        """Prepare the model, and serve until `stop`, SIGINT or SIGTERM; SIGHUP loads the model again.

        Args:
            ready: Called when requests are taken.
        """
        before = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_SECONDS)
        try:
            asyncio.run(self._run(ready))
        finally:
            sys.setswitchinterval(before)

    async def _run(self, ready: Callable[[], None] | None) -> None:
        loop = asyncio.get_running_loop()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, self.stop)
            loop.add_signal_handler(signal.SIGHUP, self.reload)
        preparing = asyncio.create_task(self._prepare(ready))
        with quiet_logs(loop):
            watching = [asyncio.create_task(self._guard().watch()), asyncio.create_task(self._watch_lag())]
            await self.server.serve([self.socket])
            for task in watching:
                task.cancel()
        await asyncio.to_thread(self.service.stop)
        await preparing

    async def _prepare(self, ready: Callable[[], None] | None) -> None:
        try:
            await asyncio.to_thread(self.service.prepare)
            if ready:
                ready()
        except BaseException:  # raised when the server has stopped
            self.stop()
            raise

    async def _watch_lag(self) -> None:
        """Tell the service how late the event loop is, until cancelled."""
        while True:
            began = time.perf_counter()
            await asyncio.sleep(LOOK_SECONDS)
            self.service.lag_ms = max(0.0, 1e3 * (time.perf_counter() - began - LOOK_SECONDS))

    def _guard(self) -> ConnectionGuard:
        settings = self.service.settings
        most = min(settings.max_connections, open_files() - SPARE_FILES)
        per_address = min(settings.max_connections_per_address, most)
        return ConnectionGuard(self.server.server_state.connections, most, per_address, settings.send_seconds)

    def stop(self) -> None:
        """Take no more requests, and end when those that were accepted are answered; asked twice, end at once."""
        self.server.force_exit = self.server.should_exit
        self.server.should_exit = True

    def reload(self) -> None:
        """Load the model again while requests go on, unless that is under way already."""
        if self.service.ready and (self._reloading is None or self._reloading.done()):
            self._reloading = asyncio.create_task(asyncio.to_thread(self.service.reload))


@contextmanager
def quiet_logs(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Log one line per cause and minute, also of what goes wrong in the event loop."""
    once = OncePerMinute()
    loggers = [LOG, logging.getLogger("uvicorn.error")]
    for logger in loggers:
        logger.addFilter(once)
    loop.set_exception_handler(
        lambda _, context: LOG.error("%s: %s", context["message"], context.get("exception") or "no details")
    )
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(once)


def open_files() -> int:
    """Return how many files and connections this process may have open."""
    try:
        import resource
    except ImportError:  # Windows
        return 512
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**20 if soft == resource.RLIM_INFINITY else soft


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that takes connections."""
    if not 0 <= port < 2**16:
        raise UserError(f"`port` must be 0 to 65535, not {port}")
    try:
        (kind, _, _, _, address), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # Named by its protocol, asyncio sends at once; else an answer in two parts would wait 40 ms for the client.
        listener = socket.socket(kind, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    except OSError as error:
        raise UserError(f"`host` {host}: {error.strerror}") from None
    try:
        if os.name == "posix":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)  # those who connect before it runs wait
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise UserError(f"cannot listen on {host}, port {port}: {error.strerror}; choose another `port`") from None
    return listener


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached from this machine only.

    >>> is_loopback("localhost"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
