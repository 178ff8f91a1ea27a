"""`python -m benchmarks.runtime`: does the adaptive mode bring p95 back under its target after the load doubles?

See README.md beside this file.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
import tyro
from matplotlib.figure import Figure
from rich.console import Console

import us3l
from us3l.deploy.latency import percentile
from us3l.runtime.adaptive import Decision
from us3l.runtime.runtime import AnyImages, Runtime, spread
from us3l.system.files import write_json
from us3l.width import Width

SIZE = 32
BLUE, ORANGE, INK = "#0072B2", "#D55E00", "#444444"


class Service(Protocol):
    def embed(self, images: AnyImages) -> np.ndarray: ...


@dataclass(frozen=True)
class Request:
    ended: float
    """Seconds since the start."""
    latency_ms: float


def serve(service: Service, clients: int, seconds: float) -> list[Request]:
    """Normal load, doubled load and normal load again, for so long each: clients that send one image after another."""
    start = time.perf_counter()
    ends = [start + seconds * phase for phase in (1, 2, 3)]
    images = np.random.default_rng(0).integers(0, 256, (1, 3, SIZE, SIZE), dtype=np.uint8)

    def client(first: float, last: float) -> list[Request]:
        time.sleep(max(0.0, first - time.perf_counter()))
        found = []
        while (began := time.perf_counter()) < last:
            service.embed(images)
            ended = time.perf_counter()
            found.append(Request(ended - start, 1e3 * (ended - began)))
        return found

    with ThreadPoolExecutor(2 * clients) as pool:
        steady = [pool.submit(client, start, ends[2]) for _ in range(clients)]
        extra = [pool.submit(client, ends[0], ends[1]) for _ in range(clients)]
        found = [request for future in (*steady, *extra) for request in future.result()]
    return sorted(found, key=lambda request: request.ended)


def p95(requests: list[Request], first: float, last: float) -> float:
    return percentile([request.latency_ms for request in requests if first <= request.ended < last], 95)


class Fixed:
    """The runtime at full width, whatever happens."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    def embed(self, images: AnyImages) -> np.ndarray:
        return self.runtime.embed(images, width=1.0)


def main(
    seconds: float = 20.0,
    clients: int = os.cpu_count() or 1,
    slack: float = 1.6,
    picture: Path = Path("benchmarks/adaptive.png"),
    record: Path = Path("benchmarks/adaptive.json"),
) -> int:
    """Serve `clients`, then twice as many, then `clients` again, for `seconds` each.

    The target is `slack` times the median latency of full width under normal load. The exit code is 1 if p95 is over
    the target in the second half of the doubled load.
    """
    console = Console(highlight=False)
    torch.manual_seed(0)
    net = us3l.create("resnet18", stem="cifar")
    net.metadata = {"preprocessing": {"size": SIZE, "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}}
    us3l.calibrate(net, torch.randn(16, 3, SIZE, SIZE), widths=spread(net.widths, 9))
    runtime = Runtime(net, threads=1)
    console.print("p95 ms when idle:", {width: round(ms, 1) for width, ms in runtime.measure().items()})

    console.print(f"full width: {clients} clients, then {2 * clients}, then {clients}")
    fixed = serve(Fixed(runtime), clients, seconds)
    normal = [request.latency_ms for request in fixed if request.ended < seconds]
    adaptive = runtime.adaptive(slack * percentile(normal, 50))
    target = adaptive.controller.target_ms
    console.print(f"adaptive, to hold a p95 of {target:.1f} ms")
    requests = serve(adaptive, clients, seconds)

    for phase, name in enumerate(("normal load", "doubled load", "normal load again")):
        span = (phase + 0.5) * seconds, (phase + 1) * seconds
        before, after = p95(fixed, *span), p95(requests, *span)
        console.print(f"{name}, second half: p95 {before:.1f} ms at full width, {after:.1f} ms adaptive")
    for move in adaptive.decisions:
        console.print(f"  {move.time:5.1f} s: p95 {move.p95_ms:5.1f} ms, width {move.old:.3g} -> {move.new:.3g}")
    draw(fixed, requests, adaptive.decisions, target, seconds, adaptive.width, picture)
    write_json(record, adaptive.record() | {"clients": clients, "seconds": seconds})
    console.print(f"written: {picture}, {record}")
    return 0 if p95(requests, 1.5 * seconds, 2 * seconds) <= target else 1


def draw(
    fixed: list[Request],
    requests: list[Request],
    decisions: list[Decision],
    target: float,
    seconds: float,
    width: Width,
    path: Path,
) -> None:
    figure = Figure(figsize=(9, 6), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[2.2, 1])
    top.scatter(
        [r.ended for r in requests], [r.latency_ms for r in requests], s=3, alpha=0.25, color=BLUE, linewidths=0
    )
    for served, colour, name in ((fixed, ORANGE, "p95 at full width"), (requests, BLUE, "p95, adaptive")):
        times = np.arange(1, 3 * seconds, 0.25)
        top.plot(times, [p95(served, t - 1, t) for t in times], color=colour, linewidth=2, label=name)
    top.axhline(target, color=INK, linestyle="--", linewidth=1.2, label=f"target, {target:.0f} ms")
    slowest = max(p95(fixed, 0, 3 * seconds), p95(requests, 0, 3 * seconds))
    top.set_ylim(0, 1.6 * max(slowest, target))
    top.set_ylabel("latency of a request, ms", color=INK)
    figure.legend(*top.get_legend_handles_labels(), frameon=False, ncols=3, loc="outside lower center")
    top.set_title("p95 of each second; dots are the adaptive runtime's requests", loc="left", fontweight="bold")
    moves = [(0.0, decisions[0].old if decisions else width), *((move.time, move.new) for move in decisions)]
    bottom.step([*(t for t, _ in moves), 3 * seconds], [*(w for _, w in moves), width], where="post", color=BLUE)
    bottom.set_ylim(0, 1.1)
    bottom.set_ylabel("width", color=INK)
    bottom.set_xlabel("seconds", color=INK)
    for axes in (top, bottom):
        axes.axvspan(seconds, 2 * seconds, color="#f0f0f0", zorder=0)
        axes.grid(axis="y", color="#e4e4e4")
        axes.set_xlim(0, 3 * seconds)
        for spine in axes.spines.values():
            spine.set_visible(False)
    bottom.text(1.5 * seconds, 0.06, "twice the load", ha="center", color=INK)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160)


if __name__ == "__main__":
    raise SystemExit(tyro.cli(main))
