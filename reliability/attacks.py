"""`python -m reliability.attacks PART`: what clients that mean harm do to a service, and to others that it serves.

PART is "none" (what honest clients see without an attack), "unread" (connections that send thousands of requests and
read no answer), "posts" (one connection that does so with images), "pixels" (one request of 64 pictures of 40 million
pixels), "log" (more connections than the process may open files), "headers" (foreign hosts and origins, upgrades), or
"all". One line per part: memory beyond the idle service, the slowest answer of /health, the share of honest requests
that are answered. `--tree` names a checkout whose service is attacked, and `--plain` an ONNX file to attack the plain
server of uvicorn with instead.
"""

from __future__ import annotations

import asyncio
import io
import json
import resource
import socket
import tempfile
import time
from base64 import b64encode
from collections import Counter
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from typing import Literal

import tyro
from PIL import Image
from rich.console import Console

from benchmarks.clients import HOST, ServerProcess, post, receive, server
from reliability.serving import encoded, small_model

TOKEN = "a token for these experiments"
GET = f"GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode()
LIMIT = 30.0  # seconds that an honest client waits
CONSOLE = Console(highlight=False, soft_wrap=True)


class Seen:
    """What honest clients see of a service while something else goes on, and what memory it takes."""

    def __init__(self, each: ServerProcess) -> None:
        self.each, self.idle = each, each.memory_mb()
        self.memory = self.idle
        self.health: list[float] = []
        self.honest: Counter[int] = Counter()
        """Their answers by status; 0 is none."""
        self.open = 0

    async def ask(self, request: bytes) -> int:
        """Return the status of an answer; 0 if there is none."""
        try:
            async with asyncio.timeout(LIMIT):
                reader, writer = await asyncio.open_connection(HOST, self.each.port)
                writer.write(request)
                status = (await receive(reader)).status
                writer.close()
                return status
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            return 0

    async def watch_health(self) -> None:
        while True:
            began = time.perf_counter()
            self.health.append(LIMIT)  # until there is an answer
            if await self.ask(f"GET /health HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode()):
                self.health[-1] = time.perf_counter() - began
            else:
                self.health[-1] = max(LIMIT, time.perf_counter() - began)
            await asyncio.sleep(0.2)

    async def watch_memory(self) -> None:
        while True:
            self.memory = max(self.memory, self.each.memory_mb())
            await asyncio.sleep(0.1)

    async def be_honest(self) -> None:
        request = authorised(post("/embed", encoded(1), "image/jpeg"))
        while True:
            self.honest[await self.ask(request)] += 1
            await asyncio.sleep(0.1)

    async def during(self, seconds: float, attack: asyncio.Task[object]) -> None:
        """Look on for some seconds, or until the attack has ended, if that is later."""
        watching = [self.watch_health(), self.watch_memory(), self.be_honest(), self.be_honest()]
        tasks = [asyncio.create_task(one) for one in watching]
        with suppress(TimeoutError):
            async with asyncio.timeout(60):
                await asyncio.gather(asyncio.sleep(seconds), attack, return_exceptions=True)
        await asyncio.sleep(1)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def __str__(self) -> str:
        share = self.honest[200] / max(1, self.honest.total())
        return (
            f"memory {self.idle:.0f} + {self.memory - self.idle:.0f} MB; /health at most {max(self.health):.2f} s of "
            f"{len(self.health)}; {share:.0%} of {self.honest.total()} honest requests answered {dict(self.honest)}"
        )


def authorised(request: bytes) -> bytes:
    return request.replace(b"\r\n", f"\r\nAuthorization: Bearer {TOKEN}\r\n".encode(), 1)


async def send_unread(seen: Seen, connections: int, data: bytes, seconds: float) -> None:
    """Send all that the other side takes, and read nothing."""
    loop, sockets = asyncio.get_running_loop(), []

    async def one() -> None:
        client = socket.socket()
        sockets.append(client)
        client.setblocking(False)
        with suppress(OSError):
            await loop.sock_connect(client, (HOST, seen.each.port))
            await loop.sock_sendall(client, data)

    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.gather(*(one() for _ in range(connections)))
            await asyncio.sleep(seconds)  # cut off by the time limit
    seen.open = sum(is_open(client) for client in sockets)
    for client in sockets:
        client.close()


def is_open(client: socket.socket) -> bool:
    """Return whether the service still holds a connection, whose answers nobody has read."""
    return client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1) == b"\x01"  # established


def none(each: ServerProcess, seconds: float) -> str:
    seen = Seen(each)

    async def watched() -> None:
        await seen.during(seconds, asyncio.create_task(asyncio.sleep(0)))

    asyncio.run(watched())
    return str(seen)


def unread(each: ServerProcess, seconds: float) -> str:
    texts = []
    for connections in (60, 200):
        seen = Seen(each)

        async def attacked(seen: Seen = seen, connections: int = connections) -> None:
            attack = asyncio.create_task(send_unread(seen, connections, GET * 20_000, seconds))
            await seen.during(seconds, attack)

        asyncio.run(attacked())
        texts.append(f"{connections} connections: {seen}; {seen.open} of them open after {seconds:.0f} s")
        time.sleep(2)
    return "\n".join(texts)


def posts(each: ServerProcess, seconds: float) -> str:
    seen, request = Seen(each), authorised(post("/embed", encoded(1), "image/jpeg"))

    async def attacked() -> None:
        await seen.during(seconds, asyncio.create_task(send_unread(seen, 1, request * 20_000, seconds)))

    asyncio.run(attacked())
    return f"{seen}; {seen.open} of 1 open after {seconds:.0f} s"


def pixels(each: ServerProcess, seconds: float) -> str:
    texts = []
    for kind in ("WEBP", "PNG"):
        file, seen = io.BytesIO(), Seen(each)
        Image.new("RGB", (6320, 6320)).save(file, kind)
        request = post("/embed", json.dumps([b64encode(file.getvalue()).decode()] * 64).encode(), "application/json")
        single = authorised(post("/embed", file.getvalue(), f"image/{kind.lower()}"))
        status: list[object] = []

        async def hostile(
            seen: Seen = seen, request: bytes = request, single: bytes = single, status: list[object] = status
        ) -> None:
            began = time.perf_counter()
            answer = await seen.ask(authorised(request))
            if answer == 500:  # the plain server takes one image per request
                answer = (await asyncio.gather(*(seen.ask(single) for _ in range(64))))[0]
            status.append(f"{answer} in {time.perf_counter() - began:.2f} s")

        async def attacked(seen: Seen = seen, hostile: object = hostile) -> None:
            await seen.during(seconds, asyncio.create_task(hostile()))  # type: ignore[operator]

        asyncio.run(attacked())
        texts.append(f"{kind}: {seen}; the request: {', '.join(map(str, status)) or 'no answer in 60 s'}")
    return "\n".join(texts)


def log(each: ServerProcess, seconds: float) -> str:
    before, seen = len(each.text), Seen(each)

    async def attacked() -> None:
        await seen.during(seconds, asyncio.create_task(send_unread(seen, 400, b"", seconds)))

    asyncio.run(attacked())
    return f"{(len(each.text) - before) / 1e6:.3f} MB of log in {seconds:.0f} s; {seen}"


def headers(each: ServerProcess, _: float) -> str:
    image, seen = encoded(1), Seen(each)
    usual = authorised(post("/embed", image, "image/jpeg"))
    read = authorised(f"GET /widths HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
    cases = {
        "GET /widths": read,
        "the same, foreign Host": read.replace(HOST.encode(), b"evil.example"),
        "POST": usual,
        "POST, foreign Origin": usual.replace(b"\r\n", b"\r\nOrigin: http://evil.example\r\n", 1),
        "POST, Upgrade: h2c": usual.replace(b"\r\n", b"\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n", 1),
        "POST, Upgrade: websocket": usual.replace(b"\r\n", b"\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n", 1),
    }

    async def statuses() -> list[int]:
        return [await seen.ask(request) for request in cases.values()]

    found = asyncio.run(statuses())
    return ", ".join(f"{name}: {status}" for name, status in zip(cases, found, strict=True))


PARTS = {"none": none, "unread": unread, "posts": posts, "pixels": pixels, "log": log, "headers": headers}


def attacked_server(tree: Path, plain: Path | None, backend: str) -> AbstractContextManager[ServerProcess]:
    """Return a fresh server to attack."""
    if plain is not None:
        return server("-m", "benchmarks.plain_server", str(plain), "32", "1", tree=tree)
    secret = Path(tempfile.gettempdir()) / "us3l-attacks-token"
    secret.write_text(TOKEN)
    settings = ("--backend", backend, "--token-file", str(secret), "--target-ms", "1000")  # of a busy machine
    return server("-m", "us3l", "serve", str(small_model()), "--port", "0", *settings, tree=tree)


def main(
    part: Literal["none", "unread", "posts", "pixels", "log", "headers", "all"],
    /,
    seconds: float = 18.0,
    tree: Path = Path(),
    plain: Path | None = None,
    backend: str = "onnx",
) -> int:
    """Attack a service, for some seconds per part."""
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    for name in PARTS if part == "all" else (part,):
        with ExitStack() as stack:
            if name == "log":  # the server begins with this limit, and keeps it
                resource.setrlimit(resource.RLIMIT_NOFILE, (100, usual[1]))
            each = stack.enter_context(attacked_server(tree, plain, backend))
            resource.setrlimit(resource.RLIMIT_NOFILE, usual)
            CONSOLE.print(f"{name}: {PARTS[name](each, seconds)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(tyro.cli(main))
