"""`python -m benchmarks.serving PART`: speed of `us3l serve` over HTTP, on this machine alone.

PART is "throughput", "load", "overload" or "workers". See README.md beside this file.
"""

from __future__ import annotations

import asyncio
import io
from collections import Counter
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import tyro
from matplotlib.figure import Figure
from PIL import Image
from rich.console import Console

import us3l
from benchmarks.clients import Timed, closed_loop, form, open_loop, post, scratch, server, us3l_server
from us3l.deploy.latency import percentile
from us3l.run import Run
from us3l.run.bundles import read_bundle
from us3l.runtime.runtime import spread
from us3l.system.files import read_json, write_json

SIZE = 32
BLUE, ORANGE, INK = "#0072B2", "#D55E00", "#444444"
CONSOLE = Console(highlight=False, soft_wrap=True)


def picture(side: int = SIZE, kind: str = "JPEG") -> bytes:
    coarse = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(coarse).resize((side, side)).save(file, kind)
    return file.getvalue()


def full_size() -> Path:
    """ResNet-18 at full size for 32 pixels, untrained, as nine ONNX files; made once."""
    folder = scratch() / "resnet18"
    if not (folder / "manifest.json").exists():
        torch.manual_seed(0)
        net = us3l.create("resnet18", stem="cifar")
        net.metadata = {"preprocessing": {"size": SIZE, "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}}
        widths = spread(net.widths, 9)
        us3l.calibrate(net, torch.randn(16, 3, SIZE, SIZE), widths=widths)
        us3l.export(net, widths, "onnx", out=folder)
    return folder


def p(requests: list[Timed], percent: float) -> float:
    return percentile([one.latency_ms for one in requests], percent) if requests else float("nan")


def answered(requests: list[Timed]) -> list[Timed]:
    return [one for one in requests if one.status == 200]


def throughput(seconds: float, rounds: int) -> dict[str, object]:
    """Ours against the plainest server of the same network at the same width, 1 and 16 clients, taking turns."""
    bundle = full_size()
    rows: dict[str, object] = {}
    for width in (1.0, 0.25):
        (entry,) = [entry for entry in read_bundle(bundle).entries if entry.width == width]
        file = str(bundle / next(name for name in entry.files if name.endswith(".onnx")))
        plain = ("-m", "benchmarks.plain_server", file, str(SIZE))
        ours = ("--backend", "onnx", "--target-ms", "1e6", "--deadline-ms", "1e6", "--width", str(width))
        with (
            us3l_server(bundle, *ours) as one,
            us3l_server(bundle, *ours, "--threads", "1") as two,
            server(*plain, "1") as single,
            server(*plain, "0") as usual,
        ):
            servers = {
                "ours": one,
                "ours, 1 thread": two,
                "plain, 1 thread": single,
                "plain, as it comes": usual,
            }
            for clients in (1, 16):
                best: dict[str, float] = {}
                for _ in range(rounds):
                    for name, each in servers.items():
                        found = asyncio.run(closed_loop(each.port, clients, seconds, post("/embed", picture())))
                        best[name] = max(best.get(name, 0.0), len(answered(found)) / found[-1].ended)
                rows[f"{width:g}x, {clients} clients"] = best
                told = ", ".join(f"{name} {rate:.1f}" for name, rate in best.items())
                CONSOLE.print(f"{width:g}x, {clients} clients, requests per second, best of {rounds}: {told}")
    return rows


def workers(seconds: float, rounds: int) -> dict[str, object]:
    """Which number of threads, and which batches, answer most: 16 clients at 1x and 0.25x."""
    bundle = full_size()
    rows: dict[str, object] = {}
    for width in (1.0, 0.25):
        shared = ("--backend", "onnx", "--target-ms", "1e6", "--deadline-ms", "1e6", "--width", str(width))
        choices = {
            "1 worker, 1 thread": ("--workers", "1", "--threads", "1"),
            "1 worker, 2 threads": ("--workers", "1", "--threads", "2"),
            "2 workers, 1 thread": ("--workers", "2", "--threads", "1"),
            "2 workers, 1 thread, image by image": ("--workers", "2", "--threads", "1", "--batch-size", "1"),
            "2 workers, 2 threads": ("--workers", "2", "--threads", "2"),
        }
        best: dict[str, float] = {}
        for name, choice in choices.items():
            with us3l_server(bundle, *shared, *choice) as each:
                for _ in range(rounds):
                    found = asyncio.run(closed_loop(each.port, 16, seconds, post("/embed", picture())))
                    best[name] = max(best.get(name, 0.0), len(answered(found)) / found[-1].ended)
        rows[f"{width:g}x"] = best
        CONSOLE.print(f"{width:g}x, requests per second:", {name: round(rate, 1) for name, rate in best.items()})
    return rows


def capacity(port: int, request: bytes, seconds: float) -> float:
    """Requests per second that it answers when they never end."""
    found = asyncio.run(closed_loop(port, 8, seconds, request))
    return len(answered(found)) / found[-1].ended


def load(seconds: float, run: Path | None, images: int, backend: str, figure: Path) -> dict[str, object]:
    """Requests at 0.6 of what a server fixed at 1x can bear, then at 1.2, then at 0.6, for `seconds` each.

    The target is three times the median at 1x under the first load.
    """
    model = run or full_size()
    request = post("/embed", *form([picture()] * images)) if images > 1 else post("/embed", picture(), "image/jpeg")
    endless = ("--backend", backend, "--target-ms", "1e6", "--deadline-ms", "1e6", "--width", "1")
    with us3l_server(model, *endless) as fixed:
        rate = capacity(fixed.port, request, min(5.0, seconds))
        phases = [(seconds, 0.6 * rate), (seconds, 1.2 * rate), (seconds, 0.6 * rate)]
        CONSOLE.print(f"at 1x it bears {rate:.0f} requests per second of {images} images: 0.6, 1.2 and 0.6 of that")
        before = asyncio.run(open_loop(fixed.port, phases, request))
    target = 3 * p([one for one in before if one.ended < seconds], 50)
    with us3l_server(model, "--backend", backend, "--target-ms", str(target / images)) as adaptive:
        after = asyncio.run(open_loop(adaptive.port, phases, request))
    accuracies = evaluated(model)
    rows: dict[str, object] = {"target_ms": target, "rate": rate}
    for phase, name in enumerate(("normal load", "doubled load", "normal load again")):
        parts = []
        for requests, who in ((before, "at 1x"), (after, "adaptive")):
            some = [one for one in requests if (phase + 0.25) * seconds <= one.ended < (phase + 1) * seconds]
            good = answered(some)
            part = f"{who}: p95 {p(good, 95):.1f} ms, {len(some) - len(good)} of {len(some)} refused"
            widths = Counter(one.width for one in good if one.width)
            if who == "adaptive" and widths:
                part += f", mean width {sum(w * n for w, n in widths.items()) / widths.total():.2f}"
                if accuracies:  # of widths between those that were evaluated, on the line between them
                    known = sorted(accuracies)
                    percent = [accuracies[width] for width in known]
                    mean = sum(np.interp(w, known, percent) * n for w, n in widths.items()) / widths.total()
                    part += f", mean accuracy {mean:.2f} % (1x: {accuracies[max(accuracies)]:.2f} %)"
            parts.append(part)
        rows[name] = parts
        CONSOLE.print(f"{name}, after its first quarter: " + "; ".join(parts))
    CONSOLE.print(f"the target was {target:.1f} ms")
    draw(before, after, target, seconds, figure)
    CONSOLE.print(f"written: {figure}")
    return rows


def evaluated(model: Path) -> dict[float, float]:
    """The linear probe's accuracy of each width, from the run's own evaluation."""
    files = sorted(Run(model).evaluation_folder.glob("*.json")) if (model / "config.yaml").exists() else []
    rows = read_json(files[0])["widths"] if files else []
    return {row["width"]: row["linear"] for row in rows if row.get("linear") is not None}


def overload(seconds: float, factor: float, images: int) -> dict[str, object]:
    """`factor` times what the narrowest width can bear, then 0.3 of it: does it recover?"""
    bundle = full_size()
    request = post("/embed", *form([picture()] * images)) if images > 1 else post("/embed", picture(), "image/jpeg")
    narrow = str(min(entry.width for entry in read_bundle(bundle).entries))
    endless = ("--backend", "onnx", "--target-ms", "1e6", "--deadline-ms", "1e6", "--width", narrow)
    with us3l_server(bundle, *endless) as each:
        rate = capacity(each.port, request, min(5.0, seconds))
    target = 100.0
    with us3l_server(bundle, "--backend", "onnx", "--target-ms", str(target / images)) as each:
        phases = [(seconds, factor * rate), (seconds, 0.3 * rate)]
        found = asyncio.run(open_loop(each.port, phases, request))
    rows: dict[str, object] = {"rate": rate, "target_ms": target}
    for phase, name in enumerate((f"{factor:g} times the load", "0.3 of the load")):
        some = [one for one in found if (phase + 0.25) * seconds <= one.ended < (phase + 1) * seconds]
        good, statuses = answered(some), Counter(one.status for one in some)
        refused = [one for one in some if one.status in (429, 503)]
        rows[name] = text = (
            f"{len(good) / (0.75 * seconds):.0f} answered per second with p95 {p(good, 95):.1f} ms; "
            f"{len(refused)} of {len(some)} refused, in {p(refused, 50):.1f} ms; statuses {dict(statuses)}"
        )
        CONSOLE.print(f"{name} ({phases[phase][1]:.0f} per second of {images} images), after its first quarter: {text}")
    return rows


def draw(before: list[Timed], after: list[Timed], target: float, seconds: float, path: Path) -> None:
    figure = Figure(figsize=(9, 6), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[2.2, 1])
    good = answered(after)
    top.scatter([r.ended for r in good], [r.latency_ms for r in good], s=3, alpha=0.25, color=BLUE, linewidths=0)
    times = np.arange(1, 3 * seconds, 0.25)
    for served, colour, name in ((before, ORANGE, "p95 at 1x"), (after, BLUE, "p95, adaptive")):
        values = [p([one for one in answered(served) if t - 1 <= one.ended < t], 95) for t in times]
        top.plot(times, values, color=colour, linewidth=2, label=name)
    top.axhline(target, color=INK, linestyle="--", linewidth=1.2, label=f"target, {target:.0f} ms")
    top.set_yscale("log")
    top.set_ylabel("latency over HTTP, ms", color=INK)
    figure.legend(*top.get_legend_handles_labels(), frameon=False, ncols=3, loc="outside lower center")
    top.set_title("p95 of each second; dots are the adaptive service's answers", loc="left", fontweight="bold")
    wide = [one for one in good if one.width]
    bottom.scatter([r.ended for r in wide], [r.width or 0 for r in wide], s=3, color=BLUE, linewidths=0)
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


def main(
    part: Literal["throughput", "workers", "load", "overload"],
    /,
    seconds: float = 10.0,
    rounds: int = 3,
    run: Path | None = None,
    images: int = 1,
    backend: str = "onnx",
    factor: float = 3.0,
    picture: Path = Path("benchmarks/serving.png"),
    record: Path = Path("benchmarks/serving.json"),
) -> int:
    """Measure one part; `seconds` is for each phase or turn."""
    rows = {
        "throughput": lambda: throughput(seconds, rounds),
        "workers": lambda: workers(seconds, rounds),
        "load": lambda: load(seconds, run, images, backend, picture),
        "overload": lambda: overload(seconds, factor, images),
    }[part]()
    write_json(record, {"part": part, "seconds": seconds, "rows": rows})
    return 0


if __name__ == "__main__":
    raise SystemExit(tyro.cli(main))
