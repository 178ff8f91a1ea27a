"""`us3l serve` under clients that are many, hostile, slow or gone; on this machine alone, every part bounded in time.

    python -m reliability.serving PART [--requests 10000] [--clients 16] [--backend torch] [--model FOLDER]

PART is "equal" (answers equal `Runtime.embed` to the bit, damaged images among them; memory), "mutated" (requests with
random changes), "slow" (half-sent heads and bodies while others are served), "kill" (SIGKILL and a new start), "stop"
(SIGTERM with requests in flight), "reload" (SIGHUP with requests in flight), or "all". The exit code is 1 if anything
was not as it should be.
"""

from __future__ import annotations

import asyncio
import io
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Literal, get_args

import numpy as np
import torch
import tyro
from PIL import Image
from rich.console import Console

import us3l
from benchmarks.clients import HOST, Connection, ServerProcess, form, post, receive, scratch, us3l_server
from fuzz.mutate import mutated
from us3l.runtime.runtime import Runtime
from us3l.serving.model import usual_threads

Part = Literal["equal", "mutated", "slow", "kill", "stop", "reload", "all"]
CONSOLE = Console(highlight=False, soft_wrap=True)
KINDS = (("PNG", "RGB"), ("JPEG", "RGB"), ("JPEG", "L"), ("GIF", "P"), ("BMP", "RGB"), ("WEBP", "RGB"), ("PNG", "RGBA"),
         ("TIFF", "RGB"), ("PNG", "I;16"), ("JPEG", "CMYK"))  # fmt: skip
ENDLESS = ("--target-ms", "1e6", "--deadline-ms", "1e6", "--queue", "4096")


def small_model() -> Path:
    """ResNet-18 with 8 channels for 32 pixels, untrained, and its bundle for the other backends; made once."""
    folder = scratch() / "small"
    if not (folder / "export" / "manifest.json").exists():
        torch.manual_seed(0)
        net = us3l.create("resnet18", stem="cifar", base=8)
        net.metadata = {"preprocessing": {"size": 32}}
        us3l.calibrate(net, torch.randn(32, 3, 32, 32))
        net.save(folder / "model", overwrite=True)
        us3l.export(net, net.widths, ["onnx", "openvino"], out=folder / "export")
    return folder


def encoded(seed: int) -> bytes:
    """An image of some size and kind."""
    draw = np.random.default_rng(seed)
    kind, mode = KINDS[seed % len(KINDS)]
    pixels = draw.integers(0, 256, (*draw.integers(8, 90, 2), 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    image = Image.fromarray(pixels[..., 0].astype(np.uint16) * 257) if mode == "I;16" else image.convert(mode)
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


class Expected:
    """What the runtime gives for images, alone."""

    def __init__(self, model: Path, backend: str, number: int = 60) -> None:
        threads = usual_threads(model, backend)
        runtime = Runtime(model, backend, threads=threads)  # type: ignore[arg-type]
        self.widths = runtime.widths
        self.images = [encoded(seed) for seed in range(number)]
        self.rows = {(w, i): runtime.embed(image, w)[0] for w in self.widths for i, image in enumerate(self.images)}

    def request(self, random: Random) -> tuple[bytes, Callable[[int, bytes], bool]]:
        """A request, and whether an answer to it is right."""
        width = random.choice(self.widths)
        some = [random.randrange(len(self.images)) for _ in range(random.choice((1, 1, 1, 2, 5)))]
        if random.random() < 0.1:  # a damaged one among them
            images = [self.images[index] for index in some]
            images[-1] = images[-1][: len(images[-1]) // 3]
            whole = np.concatenate([self.rows[width, index] for index in some]).tobytes()
            return post(f"/embed?width={width}", *form(images)), lambda status, body: status == 400 or body == whole
        right = np.concatenate([self.rows[width, index] for index in some]).astype("<f4").tobytes()
        body = form([self.images[index] for index in some]) if len(some) > 1 else (self.images[some[0]], "image/png")
        return post(f"/embed?width={width}", *body), lambda status, body: status == 200 and body == right


async def ask_many(
    port: int, expected: Expected, clients: int, requests: int, seen: Callable[[int], None] | None = None
) -> Counter[str]:
    """Clients that together send this many requests; how many were answered how."""
    tally: Counter[str] = Counter()
    numbers = iter(range(requests))

    async def client(seed: int) -> None:
        random, connection = Random(seed), Connection(port)
        for number in numbers:
            request, right = expected.request(random)
            try:
                reply = await connection.ask(request)
            except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
                tally[f"lost: {type(error).__name__}"] += 1
                continue
            tally[str(reply.status)] += 1
            tally["wrong"] += not right(reply.status, reply.body)
            if seen:
                seen(number)
        connection.close()

    await asyncio.gather(*(client(seed) for seed in range(clients)))
    return tally


def equal(model: Path, backend: str, clients: int, requests: int) -> bool:
    expected = Expected(model, backend)
    memory: dict[int, float] = {}
    with us3l_server(model, "--backend", backend, *ENDLESS) as each:

        def seen(number: int) -> None:
            if number % max(1, requests // 10) == 0:
                memory[number] = each.memory_mb()

        started = time.perf_counter()
        tally = asyncio.run(ask_many(each.port, expected, clients, requests, seen))
        seconds = time.perf_counter() - started
    CONSOLE.print(
        f"{backend}: {requests} requests of {clients} clients at {len(expected.widths)} widths, {seconds:.0f} s:"
    )
    CONSOLE.print(f"  {dict(tally)}; memory in MB: {', '.join(f'{memory[number]:.0f}' for number in sorted(memory))}")
    later = [memory[number] for number in sorted(memory)][2:]
    grown = later[-1] - later[0] if later else 0.0
    CONSOLE.print(f"  after the first fifth, memory changed by {grown:+.1f} MB")
    return not tally["wrong"] and set(tally) <= {"200", "400", "wrong"} and grown < 20 and clean(each)


def clean(each: ServerProcess) -> bool:
    """Whether the server said nothing of a mistake of its own."""
    if "Traceback" in each.text or "internal error" in each.text:
        CONSOLE.print(each.text)
        return False
    return True


async def still_right(port: int, expected: Expected, number: int = 20) -> bool:
    tally = await ask_many(port, expected, 2, number)
    return not tally["wrong"] and set(tally) <= {"200", "400", "wrong"}


def mutated_requests(model: Path, backend: str, clients: int, requests: int) -> bool:
    expected = Expected(model, backend)
    tally: Counter[str] = Counter()
    bad: list[bytes] = []
    numbers = iter(range(requests))
    limits = ("--max-images", "8", "--max-body-mb", "1", "--max-megapixels", "1")

    async def client(port: int) -> None:
        for number in numbers:
            random = Random(number)
            request, _ = expected.request(random)
            head, _, body = request.partition(b"\r\n\r\n")
            where = number % 4
            if where == 0:  # anywhere
                request = mutated(request, "", random)
            elif where == 1:  # the head
                request = mutated(head, "", random) + b"\r\n\r\n" + body
            else:  # the body: what is in the form, or in the image
                body = mutated(body, "", random)
                lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"content-length")]
                request = b"\r\n".join([*lines, f"Content-Length: {len(body)}".encode()]) + b"\r\n\r\n" + body
            try:
                async with asyncio.timeout(30):
                    reader, writer = await asyncio.open_connection(HOST, port)
                    writer.write(request)
                    try:
                        async with asyncio.timeout(1.0):
                            reply = await receive(reader)
                        tally[str(reply.status)] += 1
                        if b"Traceback" in reply.body or b".py" in reply.body or reply.status == 500:
                            bad.append(reply.body)
                    except TimeoutError:  # it waits for more, and must end when no more comes
                        writer.write_eof()
                        await reader.read()
                        tally["not complete"] += 1
                    except (asyncio.IncompleteReadError, ConnectionError, ValueError):
                        tally["closed"] += 1
                    writer.close()
            except TimeoutError:
                tally["HANGS"] += 1

    async def all_clients(port: int) -> bool:
        await asyncio.gather(*(client(port) for _ in range(clients)))
        return await still_right(port, expected)

    with us3l_server(model, "--backend", backend, *ENDLESS[:4], *limits) as each:
        right = asyncio.run(all_clients(each.port))
        lives = each.process.poll() is None
    CONSOLE.print(f"{requests} mutated requests: {dict(tally)}; lives: {lives}, then answers right: {right}")
    for body in bad[:5]:
        CONSOLE.print("  BAD", body[:300])
    return right and lives and not bad and not tally["HANGS"] and clean(each)


def slow(model: Path, backend: str, clients: int, requests: int) -> bool:
    """As many clients that stop in the middle as there are others."""
    expected = Expected(model, backend)
    ends: list[float] = []

    async def half_sent(port: int, number: int) -> None:
        request, _ = expected.request(Random(number))
        cut = {0: 0, 1: 20, 2: request.index(b"\r\n\r\n") + 4, 3: len(request) - 10}[number % 4]
        reader, writer = await asyncio.open_connection(HOST, port)
        began = time.perf_counter()
        writer.write(request[:cut])
        async with asyncio.timeout(60):
            while await reader.read(65536):
                pass
        ends.append(time.perf_counter() - began)
        writer.close()

    async def both(port: int) -> Counter[str]:
        async with asyncio.TaskGroup() as tasks:
            for number in range(4 * clients):
                tasks.create_task(half_sent(port, number))
            served = tasks.create_task(ask_many(port, expected, clients, requests))
        return served.result()

    with us3l_server(model, "--backend", backend, *ENDLESS) as each:
        tally = asyncio.run(both(each.port))
    CONSOLE.print(
        f"{len(ends)} half-sent requests were ended after {min(ends):.1f} to {max(ends):.1f} s; "
        f"others meanwhile: {dict(tally)}"
    )
    return not tally["wrong"] and set(tally) <= {"200", "400", "wrong"} and max(ends) < 25 and clean(each)


def kill(model: Path, backend: str, clients: int, requests: int) -> bool:
    expected = Expected(model, backend, 20)
    settings = ("--backend", backend, *ENDLESS)
    with us3l_server(model, *settings) as first:

        async def until_killed() -> Counter[str]:
            asyncio.get_running_loop().call_later(1.0, first.process.kill)
            return await ask_many(first.port, expected, clients, requests)

        tally = asyncio.run(until_killed())
        port = first.port
    started = time.perf_counter()
    with us3l_server(model, *settings, "--port", str(port)) as second:
        seconds = time.perf_counter() - started
        right = second.port == port and asyncio.run(still_right(port, expected))
    CONSOLE.print(f"killed: {dict(tally)}; on the same port again after {seconds:.1f} s, answers right: {right}")
    return right and not tally["wrong"]


def stop(model: Path, backend: str, clients: int, requests: int) -> bool:
    """Whoever was accepted is answered; others are refused in words, or find nobody."""
    expected = Expected(model, backend, 20)
    with us3l_server(model, "--backend", backend, *ENDLESS) as each:

        async def until_stopped() -> Counter[str]:
            asyncio.get_running_loop().call_later(1.0, lambda: each.send(signal.SIGTERM))
            return await ask_many(each.port, expected, clients, requests)

        tally = asyncio.run(until_stopped())
        code = each.wait()
    CONSOLE.print(f"stopped: {dict(tally)}; exit code {code}; it said: {each.lines[-1]!r}")
    # A connection that was idle is closed, and may have been about to be used: that is not a request that was accepted.
    lost = sum(number for name, number in tally.items() if name.startswith("lost: Incomplete"))
    return code == 0 and lost <= clients and "all that was accepted is answered" in each.text and clean(each)


def reload(model: Path, backend: str, clients: int, requests: int) -> bool:
    expected = Expected(model, backend)
    with us3l_server(model, "--backend", backend, *ENDLESS) as each:

        async def meanwhile() -> Counter[str]:
            loop = asyncio.get_running_loop()
            for moment in (0.5, 2.5, 4.5):
                loop.call_later(moment, lambda: each.send(signal.SIGHUP))
            return await ask_many(each.port, expected, clients, requests)

        tally = asyncio.run(meanwhile())
        time.sleep(2)
    loaded = each.text.count("is served now")
    CONSOLE.print(f"loaded again {loaded} times meanwhile: {dict(tally)}")
    return loaded > 0 and not tally["wrong"] and set(tally) <= {"200", "400", "wrong"} and clean(each)


PARTS = {"equal": equal, "mutated": mutated_requests, "slow": slow, "kill": kill, "stop": stop, "reload": reload}
assert {*PARTS, "all"} == {*get_args(Part)}


def main(
    part: Part,
    /,
    requests: int = 10_000,
    clients: int = 16,
    backend: Literal["torch", "onnx", "openvino"] = "onnx",
    model: Path | None = None,
) -> int:
    """Run one part, or all of them."""
    place, good = model or small_model(), True
    for name in PARTS if part == "all" else (part,):
        CONSOLE.print(f"\n[bold]{name}[/bold]")
        passed = PARTS[name](place, backend, clients, requests)
        CONSOLE.print("passed" if passed else "[bold red]FAILED[/bold red]")
        good &= passed
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(tyro.cli(main))
