"""`python -m benchmarks.latency`: is a carved network as fast as a native one, and how does latency fall with width?

See README.md beside this file.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import tyro
from rich.console import Console

import us3l
from us3l.deploy.latency import TIMED, latencies, take_turns
from us3l.runtime.backends import BACKENDS, machine, set_threads
from us3l.slimmable import Slimmable
from us3l.system.files import as_plain
from us3l.system.progress import Counting
from us3l.width import Width

BACKBONES = ("resnet18", "mobilenet_v2")
WIDTHS = (1.0, 0.75, 0.5, 0.25)
SIZE = 32


def network(backbone: str) -> Slimmable:
    torch.manual_seed(0)
    net = us3l.create(backbone, stem="cifar")
    us3l.calibrate(net, torch.randn(32, 3, SIZE, SIZE), widths=WIDTHS)
    return net


def against_native(net: Slimmable, turns: int) -> list[dict[str, float]]:
    """The best milliseconds of each width: built natively, carved, and on the shared weights; they take turns.

    It is the processor's time, which on one thread is the latency, but for what other programs steal.
    """
    images = torch.randn(1, 3, SIZE, SIZE)
    rivals: dict[str, Callable[[], object]] = {}
    for width in WIDTHS:
        networks = {"native": net.family(width).eval(), "carved": net.carve(width), "shared": net.at(width)}
        for name, module in networks.items():
            rivals[f"{width} {name}"] = partial(module, images)
    with torch.inference_mode():
        times = take_turns(rivals, turns, clock=time.process_time)
    return [
        {"width": width} | {name: min(times[f"{width} {name}"]) for name in ("native", "carved", "shared")}
        for width in WIDTHS
    ]


def show(console: Console, headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """As the Markdown of the documentation."""
    for row in (headers, ["---"] * len(headers), *rows):
        console.print("| " + " | ".join(map(str, row)) + " |", highlight=False, soft_wrap=True)


def main(turns: int = 20, out: Path = Path("benchmarks/latency.json")) -> int:
    """Measure one image at a time on one thread; the exit code is 1 if a carved network is over 5 % slower."""
    warnings.filterwarnings("ignore", message="width .* is not calibrated")
    console = Console()
    where = machine(BACKENDS, set_threads(1))
    console.print(f"{where['cpu']}, one thread, {where['versions']}", highlight=False, soft_wrap=True)
    record: dict[str, Any] = {"machine": where, "native": {}, "latencies": {}}
    within = True
    for backbone in BACKBONES:
        net = network(backbone)
        rows = record["native"][backbone] = against_native(net, turns)
        within &= all(row["carved"] <= 1.05 * row["native"] for row in rows)
        console.print(
            f"\n{backbone}, {SIZE} px, CIFAR stem, PyTorch, best of {turns * TIMED}, ms of CPU", highlight=False
        )
        cells = [[row["width"], *(f"{row[n]:.2f}" for n in ("native", "carved", "shared"))] for row in rows]
        ratios = [[f"{row[n] / row['native']:.2f}" for n in ("carved", "shared")] for row in rows]
        headers = ("width", "native", "carved", "shared", "carved / native", "shared / native")
        show(console, headers, [cell + ratio for cell, ratio in zip(cells, ratios, strict=True)])

        total = len(WIDTHS) * len(BACKENDS)
        with Counting(console, "measuring backends", total + total * turns) as counting:
            found = latencies(net, SIZE, list(map(Width, WIDTHS)), BACKENDS, [1], 1, turns, counting.more)
        record["latencies"][backbone] = [vars(row) for row in found]
        table = {(row.width, row.backend): f"{row.p50_ms:.2f} / {row.p95_ms:.2f}" for row in found}
        console.print(f"\n{backbone}, {SIZE} px, CIFAR stem, one image, p50 / p95 ms", highlight=False)
        show(console, ("width", *BACKENDS), [[w, *(table[Width(w), backend] for backend in BACKENDS)] for w in WIDTHS])
    out.write_text(json.dumps(record, indent=2, default=as_plain) + "\n")
    console.print(f"\ncarved within 5 % of native: {'yes' if within else 'NO'}; written: {out}", highlight=False)
    return 0 if within else 1


if __name__ == "__main__":
    raise SystemExit(tyro.cli(main))
