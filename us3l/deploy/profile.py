"""What every width costs, and how fast it is on this machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from us3l.costs import cost
from us3l.deploy.evaluated import Accuracies
from us3l.deploy.formats import write_onnx
from us3l.deploy.peak_memory import peak_memory
from us3l.deploy.pick import Candidate
from us3l.deploy.timing import percentile, take_turns
from us3l.run.profiles import Costs, Latency, Profile
from us3l.runtime.backends import OPENERS, Backend, Forward, run_torch
from us3l.slimmable import Slimmable
from us3l.system.progress import Advance
from us3l.width import Width


def all_costs(net: Slimmable, size: int, progress: Advance | None = None, also: Iterable[Width] = ()) -> list[Costs]:
    """The costs of every distinct width and of some sub-networks, widest first. Nothing is computed."""
    found = []
    for width in sorted({*net.widths, *also}, reverse=True):
        found.append(costs_of(net, width, size))
        if progress:
            progress(1)
    return found


def costs_of(net: Slimmable, width: Width, size: int) -> Costs:
    """What does not depend on a device. Nothing is computed."""
    price = cost(net, width, size=size)
    return Costs(width, price.params, price.macs, price.bytes, peak_memory(net.skeleton(width), (3, size, size)))


def latencies(
    net: Slimmable,
    size: int,
    widths: Sequence[Width],
    backends: Sequence[Backend],
    batches: Sequence[int],
    threads: int,
    turns: int,
    progress: Advance | None = None,
) -> list[Latency]:
    """Measure on this machine; each backend runs on `threads` threads.

    `progress` is called for each network made ready, and for each turn that one has taken.
    """
    images = {batch: np.random.default_rng(0).standard_normal((batch, 3, size, size), np.float32) for batch in batches}
    with TemporaryDirectory() as folder:
        jobs = {}
        for width in widths:
            for backend in backends:
                run = ready(net, width, backend, size, threads, Path(folder))
                for batch in batches:
                    jobs[width, backend, batch] = lambda run=run, batch=batch: run(images[batch])
                if progress:
                    progress(1)
        times = take_turns(jobs, turns, progress)
    return [Latency(*key, percentile(found, 50), percentile(found, 95)) for key, found in times.items()]


def ready(net: Slimmable, width: Width, backend: Backend, size: int, threads: int, folder: Path) -> Forward:
    """The carved network of that width, as the backend runs it; OpenVINO reads ONNX Runtime's file, in the folder."""
    if backend == "torch":
        return run_torch(net.carve(width))
    path = folder / f"{width:g}.onnx"
    if not path.exists():
        write_onnx(net.carve(width), size, path, about="")
    return OPENERS[backend](path, threads)


def candidates(
    profile: Profile,
    accuracies: Accuracies | None,
    backend: str | None = None,
    batch: int | None = None,
    percentile: str = "p95",
) -> list[Candidate]:
    """What `pick` chooses from: each width, on each backend that it was timed on."""
    percent = accuracies.percent if accuracies else {}
    found = []
    for row in profile.costs:
        figures = {
            "macs": row.macs,
            "params": row.params,
            "size_mb": row.bytes / 1e6,
            "memory_mb": row.memory * (batch or 1) / 1e6,
        }
        timed = [
            latency
            for latency in profile.latencies
            if latency.width == row.width and latency.batch == batch and backend in (None, latency.backend)
        ]
        found += [
            Candidate(
                row.width,
                figures | {"latency_ms": getattr(latency, f"{percentile}_ms")},
                percent.get(row.width),
                latency.backend,
            )
            for latency in timed
        ] or [Candidate(row.width, figures, percent.get(row.width))]
    return found
