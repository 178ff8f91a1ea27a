"""How fast networks are: measured here by turns, so that noise hits all alike, or on another device, as a table."""

from __future__ import annotations

import csv
import io
import math
import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import fields
from math import ceil
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from torch import nn

from us3l.run.profiles import Latency
from us3l.runtime.backends import OPENERS, Backend, run_torch
from us3l.slimmable import Slimmable
from us3l.system.errors import UserError
from us3l.system.files import parse_json, read_bytes
from us3l.system.progress import Advance
from us3l.width import Width

K = TypeVar("K", bound=Hashable)
TIMED = 4  # calls in each turn that count


def take_turns(
    jobs: Mapping[K, Callable[[], object]],
    turns: int,
    progress: Callable[[int], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[K, list[float]]:
    """Milliseconds of each job's calls. A turn begins with a call that does not count: it warms the caches."""
    found: dict[K, list[float]] = {key: [] for key in jobs}
    for _ in range(turns):
        for key, job in jobs.items():
            job()
            for _ in range(TIMED):
                started = clock()
                job()
                found[key].append(1e3 * (clock() - started))
            if progress:
                progress(1)
    return found


def percentile(values: list[float], percent: float) -> float:
    """The smallest value that this percentage of the values does not exceed.

    >>> percentile([5.0, 1.0, 3.0, 2.0, 4.0], 50), percentile([1.0] * 19 + [9.0], 95)
    (3.0, 1.0)
    """
    return sorted(values)[max(0, ceil(len(values) * percent / 100) - 1)]


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
    jobs = {}
    for width in widths:
        network = net.carve(width)
        onnx = onnx_bytes(network, size) if {*backends} & OPENERS.keys() else b""
        for backend in backends:
            run = OPENERS[backend](onnx, threads) if backend in OPENERS else run_torch(network)
            for batch in batches:
                jobs[width, backend, batch] = lambda run=run, batch=batch: run(images[batch])
            if progress:
                progress(1)
    times = take_turns(jobs, turns, progress)
    return [Latency(*key, percentile(found, 50), percentile(found, 95)) for key, found in times.items()]


def onnx_bytes(network: nn.Module, size: int) -> bytes:
    """Return a network as ONNX, which all runtimes but PyTorch read."""
    from us3l.deploy.formats import onnx_model  # slow to import

    model: bytes = onnx_model(network, size).SerializeToString()
    return model


def read_device_profile(net: Slimmable, path: Path) -> list[Latency]:
    """Latencies measured elsewhere: a CSV table, a JSON list of rows, or another profile's file of either kind."""
    rows = _json_rows(path) if path.suffix.lower() == ".json" else _csv_rows(path)
    names = [column.name for column in fields(Latency)]
    found = []
    for number, row in enumerate(rows, start=1):
        if missing := [name for name in names if name not in row]:
            raise UserError(f"{path} lacks the column {', '.join(missing)}: it needs {', '.join(names)}")
        if row["backend"] in ("", None):  # another profile's width that was not timed there
            continue
        try:
            width = Width(str(row["width"]))
            p50, p95 = (_positive(row[name]) for name in ("p50_ms", "p95_ms"))
            batch = int(row["batch"])
        except (TypeError, ValueError, OverflowError):
            raise UserError(
                f"{path}, row {number}: width, batch, p50_ms and p95_ms must be numbers above 0: {row}"
            ) from None
        if batch < 1 or p95 < p50:
            raise UserError(f"{path}, row {number}: batch must be at least 1, and p95_ms not below p50_ms: {row}")
        found.append(Latency(net.canonical(width), str(row["backend"]), batch, p50, p95))
    if not found:
        raise UserError(f"{path} holds no latency: it needs rows of {', '.join(names)}")
    keys = Counter((latency.width, latency.backend, latency.batch) for latency in found)
    if twice := next((key for key, count in keys.items() if count > 1), None):
        raise UserError(f"{path} has two rows for the network of width {twice[0]:g} on {twice[1]}, batch {twice[2]}")
    return found


def _csv_rows(path: Path) -> list[dict[str, Any]]:
    try:
        return list(csv.DictReader(io.StringIO(read_bytes(path).decode())))
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"cannot read {path}: {error}") from None


def _json_rows(path: Path) -> list[dict[str, Any]]:
    text = read_bytes(path)
    try:
        content = parse_json(text)
    except ValueError as error:
        raise UserError(f"cannot read {path}: {error}") from None
    rows = content.get("latencies") if isinstance(content, dict) else content
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UserError(f"{path} must hold a list of rows, or an object with one named latencies")
    return rows


def _positive(value: Any) -> float:
    number = float(value)
    if not (math.isfinite(number) and number > 0):
        raise ValueError(value)
    return number
