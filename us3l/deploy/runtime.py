"""One object that embeds images at any width: the width, or the time it may take, is given with each request."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from torch import nn

from us3l.data.preprocessing import Preprocessing
from us3l.deploy.adaptive import Adaptive, Controller
from us3l.deploy.backends import OPENERS, Backend, Run, run_torch, set_threads
from us3l.deploy.bundle import MANIFEST, Bundle, Entry, read_bundle
from us3l.deploy.images import Images, prepare
from us3l.deploy.pick import Candidate, pick
from us3l.deploy.timing import percentile, take_turns
from us3l.errors import UserError
from us3l.slimmable import Slimmable

MEASURED = 9  # widths that are timed unless others are named
TURNS = 5


class Networks(Protocol):
    """The networks of several widths, each ready to run."""

    preprocessing: Preprocessing
    widths: list[float]

    def run(self, width: float) -> Run: ...


class Shared:
    """Every width of a slimmable network, in PyTorch, on its one copy of weights."""

    def __init__(self, net: Slimmable) -> None:
        self.net, self.widths = net, net.widths
        if "preprocessing" not in net.metadata:
            raise UserError(
                "the network does not say how it wants its images: set "
                'net.metadata["preprocessing"] = Preprocessing.usual(size).to_plain()'
            )
        self.preprocessing = Preprocessing.of(net)
        self._lock = threading.Lock()

    def run(self, width: float) -> Run:
        return run_torch(self.network(width))

    def network(self, width: float) -> nn.Module:
        with self._lock:  # the first call for a width builds its module
            if not self.net.calibrated(width):
                raise UserError(f"width {width} is not calibrated: us3l.calibrate(net, images) first")
            return self.net.at(width)


class Files:
    """The widths of a bundle, each from its file, which is opened when first needed."""

    def __init__(self, bundle: Bundle, backend: Backend, threads: int, int8: bool | None) -> None:
        self.bundle, self.open, self.threads = bundle, OPENERS[backend], threads
        self.preprocessing = bundle.preprocessing
        fitting = [entry for entry in bundle.entries if entry.format == backend]
        if int8 is None:  # full precision, where there is a choice
            int8 = all(entry.int8 for entry in fitting)
        self.entries = {entry.width: entry for entry in fitting if entry.int8 == int8}
        if not self.entries:
            raise UserError(
                f"{bundle.folder} holds no {backend} file{' in INT8' if int8 else ''}: "
                f"us3l export RUN --width ... --format {backend}{' --int8' if int8 else ''}"
            )
        self.widths = sorted(self.entries)
        self._runs: dict[float, Run] = {}
        self._lock = threading.Lock()

    def run(self, width: float) -> Run:
        entry = self._entry(width)
        with self._lock:
            if width not in self._runs:
                self._runs[width] = self.open(self.bundle.path(entry), self.threads)
            return self._runs[width]

    def _entry(self, width: float) -> Entry:
        if width not in self.entries:
            raise UserError(f"{self.bundle.folder} has no width {width}: it has {', '.join(map(str, self.widths))}")
        return self.entries[width]


class Runtime:
    """Embeds images at the width that each request asks for, from any number of threads.

    `model` is a `Slimmable`, the folder of a run or of a model, or that of a bundle. PyTorch runs every width on one
    copy of weights; ONNX Runtime and OpenVINO run the widths of a bundle (of a run, that in its export folder). "auto"
    is PyTorch for networks, and for bundles what they hold, OpenVINO first. `threads` compute one request; PyTorch's
    number is that of the whole process. `int8` chooses between the files of a bundle that has both.
    """

    def __init__(
        self,
        model: str | Path | Slimmable,
        backend: Backend | Literal["auto"] = "auto",
        threads: int | None = None,
        int8: bool | None = None,
    ) -> None:
        threads = set_threads(threads)
        self.networks: Networks
        folder = None if isinstance(model, Slimmable) else bundle_folder(Path(model), backend)
        if folder and backend == "torch":
            raise UserError(f"{model} is a bundle, whose files onnx and openvino run: for PyTorch give the run itself")
        if folder:
            bundle = read_bundle(folder)
            self.networks = Files(bundle, choose(bundle) if backend == "auto" else backend, threads, int8)
        elif backend in ("torch", "auto"):
            self.networks = Shared(model if isinstance(model, Slimmable) else load_network(Path(model)))
        else:
            raise UserError(
                f"{backend} runs exported files: us3l export RUN --width ... --format {backend}, then Runtime(RUN)"
            )
        self._latencies: dict[int, dict[float, float]] = {}
        self._measuring = threading.RLock()

    @property
    def widths(self) -> list[float]:
        """Ascending."""
        return self.networks.widths

    def embed(self, images: Images, width: float | None = None, latency_ms: float | None = None) -> np.ndarray:
        """Features (N x C, float32) at a width; or at the widest that embeds so many images within `latency_ms`.

        Without either, the widest. The first request with `latency_ms` of each batch size waits for `measure`.
        """
        if width is not None and latency_ms is not None:
            raise UserError("give a width or latency_ms, not both")
        pixels = prepare(images, self.networks.preprocessing)
        if latency_ms is not None:
            width = self.width_within(latency_ms, len(pixels))
        return self.networks.run(self.widths[-1] if width is None else width)(pixels)

    def width_within(self, latency_ms: float, batch: int = 1) -> float:
        """The widest network that was measured to embed a batch within that time."""
        table = [Candidate(width, {"latency_ms": ms}) for width, ms in self.latencies(batch).items()]
        choice = pick(table, {"latency_ms": latency_ms})
        if not choice.fits:
            fastest = choice.candidate
            raise UserError(
                f"no width embeds {batch} images within {latency_ms:g} ms here: "
                f"{fastest.width:g} is the fastest, with {fastest.figures['latency_ms']:.3g} ms"
            )
        return choice.candidate.width

    def latencies(self, batch: int = 1) -> dict[float, float]:
        """What `measure` found for that batch size; the first call measures."""
        with self._measuring:
            return self._latencies.get(batch) or self.measure(batch)

    def measure(self, batch: int = 1, widths: Sequence[float] | None = None, turns: int = TURNS) -> dict[float, float]:
        """The p95 milliseconds of embedding a batch at each width, measured now and kept for later requests.

        Up to nine widths, spread evenly, unless others are named.
        """
        size = self.networks.preprocessing.size
        images = np.random.default_rng(0).integers(0, 256, (batch, 3, size, size), dtype=np.uint8)
        with self._measuring:
            jobs = {
                width: lambda width=width: self.embed(images, width=width)
                for width in (spread(self.widths, MEASURED) if widths is None else widths)
            }
            self._latencies[batch] = {width: percentile(ms, 95) for width, ms in take_turns(jobs, turns).items()}
            return self._latencies[batch]

    def adaptive(self, target_ms: float, batch: int = 1, **settings: Any) -> Adaptive:
        """Let the width follow the load, so that 95 % of requests of that size stay within the target.

        The settings are those of `us3l.deploy.adaptive.Controller`.
        """
        return Adaptive(self, Controller(self.latencies(batch), target_ms, **settings))


def bundle_folder(path: Path, backend: str) -> Path | None:
    """Where a path leads to a bundle, if it does: the path itself, or a run's export folder for other backends."""
    if (path / MANIFEST).is_file():
        return path
    exported = path / "export"
    return exported if backend in OPENERS and (exported / MANIFEST).is_file() else None


def spread(widths: Sequence[float], most: int) -> list[float]:
    """At most so many of the widths, evenly, with both ends.

    >>> spread([0.25, 0.4, 0.5, 0.75, 1.0], 3)
    [0.25, 0.5, 1.0]
    """
    return [widths[i] for i in np.linspace(0, len(widths) - 1, min(most, len(widths))).round().astype(int)]


def choose(bundle: Bundle) -> Backend:
    formats = {entry.format for entry in bundle.entries}
    return "openvino" if "openvino" in formats else "onnx"


def load_network(path: Path) -> Slimmable:
    from us3l.storage import load

    return load(path)
