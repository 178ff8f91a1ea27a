"""Clients and servers of this machine, for experiments with `us3l serve`: every wait has an end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

HOST = "127.0.0.1"
PATIENCE = 60.0  # seconds for one answer, or for a server to start


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Timed:
    """One request of an experiment."""

    ended: float
    """Seconds since the start."""
    latency_ms: float
    status: int
    width: float | None = None


def post(path: str, body: bytes, kind: str = "image/png", raw: bool = True) -> bytes:
    """A whole request; by default features come back as float32 values."""
    accept = "Accept: application/octet-stream\r\n" if raw else ""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: {kind}\r\n{accept}Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def form(images: Sequence[bytes]) -> tuple[bytes, str]:
    """Several images as one body, and its content type."""
    head = b'--x\r\nContent-Disposition: form-data; name="images"; filename="a"\r\n\r\n'
    return b"".join(head + image + b"\r\n" for image in images) + b"--x--\r\n", "multipart/form-data; boundary=x"


class Connection(asyncio.Protocol):
    """Requests one after another on one connection, which is opened again when it was closed.

    It takes little processor time, because servers are measured on the same processors.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.transport: asyncio.Transport | None = None
        self.received = bytearray()
        self.head: tuple[int, dict[str, str]] | None = None
        self.reply: asyncio.Future[Reply] | None = None

    async def ask(self, request: bytes) -> Reply:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(PATIENCE):
            if self.transport is None:
                self.transport, _ = await loop.create_connection(lambda: self, HOST, self.port)
            self.reply = loop.create_future()
            self.transport.write(request)
            try:
                reply = await self.reply
            except BaseException:
                self.close()
                raise
            if reply.headers.get("connection") == "close":
                self.close()
            return reply

    def data_received(self, data: bytes) -> None:
        self.received += data
        if self.head is None:
            end = self.received.find(b"\r\n\r\n")
            if end < 0:
                return
            self.head = parse_head(bytes(self.received[:end]))
            del self.received[: end + 4]
        status, headers = self.head
        if len(self.received) >= int(headers.get("content-length", 0)) and self.reply and not self.reply.done():
            self.reply.set_result(Reply(status, headers, bytes(self.received)))
            self.received.clear()
            self.head = None

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport, self.head = None, None
        if self.reply and not self.reply.done():
            self.reply.set_exception(exc or asyncio.IncompleteReadError(bytes(self.received), None))
        self.received.clear()

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()
            self.transport = None


def parse_head(text: bytes) -> tuple[int, dict[str, str]]:
    """The status of an answer, and its headers."""
    first, *lines = text.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return int(first.split()[1]), headers


async def receive(reader: asyncio.StreamReader) -> Reply:
    status, headers = parse_head((await reader.readuntil(b"\r\n\r\n")).removesuffix(b"\r\n\r\n"))
    return Reply(status, headers, await reader.readexactly(int(headers.get("content-length", 0))))


async def closed_loop(
    port: int, clients: int, seconds: float, request: bytes, seen: Callable[[Reply], None] | None = None
) -> list[Timed]:
    """Clients that each send the next request when the last is answered."""
    start = time.perf_counter()
    found: list[Timed] = []

    async def client() -> None:
        connection = Connection(port)
        while (began := time.perf_counter()) - start < seconds:
            reply = await connection.ask(request)
            found.append(timed(reply, start, began))
            if seen:
                seen(reply)
        connection.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    return found


async def open_loop(port: int, phases: Sequence[tuple[float, float]], request: bytes) -> list[Timed]:
    """Requests that come at a rate, whatever became of the last: (seconds, requests per second) one after another."""
    start = time.perf_counter()
    free: list[Connection] = []
    found: list[Timed] = []

    async def once() -> None:
        connection = free.pop() if free else Connection(port)
        began = time.perf_counter()
        try:
            found.append(timed(await connection.ask(request), start, began))
            free.append(connection)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            connection.close()
            found.append(Timed(time.perf_counter() - start, 1e3 * (time.perf_counter() - began), 0))

    async with asyncio.TaskGroup() as tasks:
        due = start
        for seconds, rate in phases:
            end = due + seconds
            while due < end:
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                tasks.create_task(once())
                due += 1 / rate
    for connection in free:
        connection.close()
    return sorted(found, key=lambda one: one.ended)


def timed(reply: Reply, start: float, began: float) -> Timed:
    now = time.perf_counter()
    width = reply.headers.get("us3l-width")
    return Timed(now - start, 1e3 * (now - began), reply.status, None if width is None else float(width))


@dataclass
class ServerProcess:
    """A server in a process of its own, and what it said."""

    process: subprocess.Popen[str]
    port: int = 0
    lines: list[str] = field(default_factory=list)

    def memory_mb(self) -> float:
        """What it takes of the memory now."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
        raise RuntimeError("the server has ended")

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        return self.process.wait(PATIENCE)

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


@contextmanager
def server(*command: str, tree: Path = Path()) -> Iterator[ServerProcess]:
    """`python COMMAND` in a checkout, from when it says where it serves; it is stopped at the end."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        cwd=tree,
    )
    found, ready = ServerProcess(process), threading.Event()

    def listen() -> None:
        assert process.stdout
        for line in process.stdout:
            found.lines.append(line.rstrip())
            if "serving on http://" in line:
                found.port = int(line.split("serving on http://")[1].split(";")[0].rpartition(":")[2])
                ready.set()
        ready.set()

    threading.Thread(target=listen, daemon=True).start()
    try:
        if not ready.wait(2 * PATIENCE) or not found.port:
            raise RuntimeError(f"the server did not start: {found.text}")
        yield found
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE)
        if process.poll() is None:
            process.kill()
            process.wait()


def us3l_server(model: Path, *settings: str) -> AbstractContextManager[ServerProcess]:
    """`us3l serve MODEL` on a free port."""
    return server("-m", "us3l", "serve", str(model), "--port", "0", *settings)


def scratch() -> Path:
    """A folder for models that are made once and used by several experiments."""
    folder = Path(tempfile.gettempdir()) / "us3l-serving"
    folder.mkdir(exist_ok=True)
    return folder
