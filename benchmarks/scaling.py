"""How cost grows: twice the images, widths, channels, processes. Drawn to benchmarks/scaling.png."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch

import us3l
from benchmarks.timing import Row, best_seconds
from us3l.reporting import style as draw

PICTURE = Path("benchmarks/scaling.png")
SIZES = (1, 2, 4)


def rows() -> Iterator[Row]:
    found = {
        "images": calibrations("images"),
        "widths": calibrations("widths"),
        "multiply-accumulates of the network": networks(),
    }
    for name, times in found.items():
        yield Row(f"twice the {name}: cost / twice the cost", times[SIZES[1]], 2 * times[SIZES[0]], "s", 1.05)
    one, two = processes(1), processes(2)
    yield Row(
        "two processes, one thread each: times the work of one",
        two,
        2 * one,
        "s for the same work each",
        1.6,
        "at least",
    )
    picture({**found, "work, by as many processes": {1: one, 2: two}})


def calibrations(what: str) -> dict[int, float]:
    """Seconds for 1, 2 and 4 times a number of images, or of widths."""
    torch.manual_seed(0)
    net = us3l.create("resnet18", stem="cifar", base=32).to(memory_format=torch.channels_last)
    images = torch.randn(128 * max(SIZES), 3, 32, 32)
    widths = net.widths[-2 * max(SIZES) :]

    def job(size: int) -> None:
        more_images, more_widths = (size, 1) if what == "images" else (1, size)
        chosen = widths[max(SIZES) - more_widths : max(SIZES) + more_widths]  # with the same mean
        us3l.calibrate(net, images[: 128 * more_images], chosen, batch_size=128)

    best = best_seconds({str(size): partial(job, size) for size in SIZES}, turns=5)
    return {size: best[str(size)] for size in SIZES}


def networks() -> dict[int, float]:
    """Forward and backward of networks with 1, 2 and 4 times the multiply-accumulates."""
    jobs, costs = {}, {}
    for size, base in zip(SIZES, (32, 46, 64), strict=True):
        net = us3l.create("resnet18", stem="cifar", base=base).to(memory_format=torch.channels_last)
        images = torch.randn(64, 3, 32, 32).contiguous(memory_format=torch.channels_last)
        costs[size] = us3l.cost(net.full, (3, 32, 32)).macs
        jobs[str(size)] = lambda net=net, images=images: net(images).square().mean().backward()
    best = best_seconds(jobs, turns=3)
    # Channels are whole numbers, so the networks are not exactly 2 and 4 times as large.
    return {size: best[str(size)] * (size * costs[1] / costs[size]) for size in SIZES}


def processes(count: int) -> float:
    """Seconds until as many processes have each done the same steps."""
    command = [sys.executable, "-m", "benchmarks.scaling"]
    workers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(count)
    ]
    wait_for(workers)
    started = time.perf_counter()
    for worker in workers:
        assert worker.stdin
        worker.stdin.write("go\n")
        worker.stdin.flush()
    wait_for(workers)
    taken = time.perf_counter() - started
    for worker in workers:
        worker.communicate()
    return taken


def wait_for(workers: list[subprocess.Popen[str]]) -> None:
    """Until each has written a line."""
    for worker in workers:
        assert worker.stdout
        worker.stdout.readline()


def work() -> None:
    """What each process does: one step to warm up, and three when it is told to."""
    from benchmarks.steps import trainer

    torch.set_num_threads(1)
    one = trainer(16, 4)
    one.train_step()
    print("ready", flush=True)
    input()
    for _ in range(3):
        one.train_step()
    print("done", flush=True)


def picture(found: dict[str, dict[int, float]]) -> None:
    figure = draw.new_figure(8, 5, "How a step grows")
    axes = figure.add_subplot()
    axes.plot(SIZES, SIZES, color="#bbbbbb", linestyle="--", label="in proportion")
    for number, (name, times) in enumerate(found.items()):
        share = [taken / times[1] for taken in times.values()]
        axes.plot(list(times), share, label=name, linewidth=2, **draw.line_style(number))
    draw.plain(axes, "times as much", "times the seconds")
    draw.legend(figure, axes, columns=2)
    draw.save(figure, PICTURE)


if __name__ == "__main__":
    work()
