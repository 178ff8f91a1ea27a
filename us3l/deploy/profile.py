"""What every width costs, how fast it is on a device, and how accurate it was found to be."""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from us3l.costs import cost
from us3l.deploy.backends import OPENERS, Backend, Run, run_torch
from us3l.deploy.formats import write_onnx
from us3l.deploy.memory import peak_memory
from us3l.deploy.pick import Candidate
from us3l.deploy.timing import percentile, take_turns
from us3l.errors import UserError
from us3l.files import finite, parse_json, read_bytes, read_json, write_json, write_text
from us3l.run import Run as RunFolder
from us3l.run.evaluations import read_evaluations, usual_evaluation
from us3l.slimmable import Slimmable

Progress = Callable[[int], None]


@dataclass(frozen=True)
class Costs:
    """What does not depend on the device."""

    width: float
    params: int
    macs: int
    bytes: int
    """Weights and batch-norm statistics as stored in 32 bits."""
    memory: int
    """Peak bytes of the activations for one image: see `peak_memory`."""


@dataclass(frozen=True)
class Latency:
    """Milliseconds for one batch."""

    width: float
    backend: str
    batch: int
    p50_ms: float
    p95_ms: float


@dataclass(frozen=True)
class Accuracies:
    """What evaluation found, in percent by width."""

    data: str
    metric: str
    percent: Mapping[float, float]


@dataclass(frozen=True)
class Profile:
    image_size: int
    costs: list[Costs]
    latencies: list[Latency] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=dict)
    """Of the latencies: processor, threads, versions; or the file that they came from."""

    def batches(self) -> list[int]:
        return sorted({latency.batch for latency in self.latencies})

    def backends(self) -> list[str]:
        return list(dict.fromkeys(latency.backend for latency in self.latencies))


# Costs and latencies


def all_costs(net: Slimmable, size: int, progress: Progress | None = None) -> list[Costs]:
    """The costs of every distinct width, widest first. Nothing is computed."""
    found = []
    for width in reversed(net.widths):
        network = net.skeleton(width, tracking=True)
        price = cost(network, (3, size, size))
        found.append(Costs(width, price.params, price.macs, price.bytes, peak_memory(network, (3, size, size))))
        if progress:
            progress(1)
    return found


def latencies(
    net: Slimmable,
    size: int,
    widths: Sequence[float],
    backends: Sequence[Backend],
    batches: Sequence[int],
    threads: int,
    turns: int,
    progress: Progress | None = None,
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


def ready(net: Slimmable, width: float, backend: Backend, size: int, threads: int, folder: Path) -> Run:
    """The carved network of that width, as the backend runs it; OpenVINO reads ONNX Runtime's file, in the folder."""
    if backend == "torch":
        return run_torch(net.carve(width))
    path = folder / f"{width:g}.onnx"
    if not path.exists():
        write_onnx(net.carve(width), size, path, about="")
    return OPENERS[backend](path, threads)


# Joining


def read_accuracies(net: Slimmable, run: Path, data: str | None = None) -> Accuracies | None:
    """What `us3l evaluate` left in the run's folder: that of a name, or the usual one; None if there is nothing."""
    found = read_evaluations(RunFolder(run))
    if data is not None and data not in found:
        raise UserError(f"{run / 'eval'} has no {data}.json: us3l evaluate {run} --data ... first")
    if not found:
        return None
    record = usual_evaluation(found) if data is None else found[data]
    if (metric := record.metric) is None:
        return None
    percent = {net.canonical(width): value for width, value in record.percent(metric).items()}
    return Accuracies(record.name, metric, percent)


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
            width, p50, p95 = (_positive(row[name]) for name in ("width", "p50_ms", "p95_ms"))
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


def pareto(points: Sequence[tuple[float, float]]) -> list[int]:
    """Which (cost, worth) points no other beats: cheaper at no less worth, or worth more at no more cost.

    >>> pareto([(1, 10), (2, 9), (3, 12)])
    [0, 2]
    """
    front, best = [], -math.inf
    for index in sorted(range(len(points)), key=lambda index: (points[index][0], -points[index][1])):
        if points[index][1] > best:
            front.append(index)
            best = points[index][1]
    return front


# Files


def _amount(value: Any) -> float:
    """A number from a file that can be reckoned with."""
    if not (finite(value) and value >= 0):
        raise ValueError(f"{value!r:.40} is no number of anything")
    return value


def write_profile(folder: Path, profile: Profile, accuracies: Accuracies | None) -> None:
    """Write profile.json and profile.csv; the latter has a row for each width on each backend and batch size."""
    percent = accuracies.percent if accuracies else {}
    widths = [asdict(row) | {"accuracy": percent.get(row.width)} for row in profile.costs]
    found = {"data": accuracies.data, "metric": accuracies.metric} if accuracies else None
    write_json(folder / "profile.json", asdict(profile) | {"costs": widths, "accuracy": found})
    columns = [*widths[0], *(column.name for column in fields(Latency) if column.name != "width")]
    text = io.StringIO()
    table = csv.DictWriter(text, columns, lineterminator="\n")
    table.writeheader()
    for row in widths:
        timed = [asdict(latency) for latency in profile.latencies if latency.width == row["width"]]
        table.writerows(row | latency for latency in timed or [{}])
    write_text(folder / "profile.csv", text.getvalue())


def read_profile(folder: Path) -> Profile:
    """The profile in a folder."""
    path = folder / "profile.json"
    content = read_json(path)
    try:
        names = [column.name for column in fields(Costs)]
        return Profile(
            int(_amount(content["image_size"])),
            [Costs(**{name: _amount(row[name]) for name in names}) for row in content["costs"]],  # type: ignore[arg-type]
            [
                Latency(**{name: value if name == "backend" else _amount(value) for name, value in row.items()})  # type: ignore[arg-type]
                for row in content["latencies"]
            ],
            dict(content["machine"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"cannot read {path} ({error}): us3l profile again, with --overwrite") from None
