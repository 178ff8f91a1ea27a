"""One object that runs networks of any width on images: the width, or the time it may take, comes with each request."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from us3l.collection.shared_space import SpaceName, space_of
from us3l.deploy.latency import percentile, take_turns
from us3l.deploy.picking import Candidate, best_within
from us3l.hub import local_folder
from us3l.run.bundles import MANIFEST, read_bundle
from us3l.runtime.adaptive import Adaptive, Controller
from us3l.runtime.backends import OPENERS, Backend, check_finite, set_threads
from us3l.runtime.inputs import AnyImages, OnError, batches, listed
from us3l.runtime.networks import BundleNetworks, Networks, SlimmableNetworks, Task
from us3l.slimmable import Slimmable
from us3l.system.errors import UserError
from us3l.system.spacing import evenly_spaced
from us3l.width import AnyWidth, Width

MEASURED = 9  # widths that are timed unless others are named
TURNS = 5
BATCH = 64  # images that are held and computed at once


@dataclass(frozen=True)
class Predictions:
    """What a classifier says of some images."""

    classes: list[str]
    """The name of each class."""
    probabilities: np.ndarray
    """N x C, float32; NaN for an image that could not be read."""

    @cached_property
    def indices(self) -> np.ndarray:
        """The most probable class of each image; -1 for one that could not be read."""
        known = ~np.isnan(self.probabilities).any(1)
        return np.where(known, np.nan_to_num(self.probabilities).argmax(1), -1)

    @property
    def labels(self) -> list[str | None]:
        """The name of the most probable class of each image; None for one that could not be read."""
        return [None if index < 0 else self.classes[index] for index in self.indices]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A dictionary for each image, ready for a table."""
        best = self.probabilities.max(1)
        return [
            {"class": label, "probability": None if label is None else float(probability)}
            for label, probability in zip(self.labels, best, strict=True)
        ]


class Runtime:
    """Embeds or classifies images at the width that each request asks for, from any number of threads.

    PyTorch runs every width on one copy of weights; ONNX Runtime and OpenVINO run the widths of a bundle (of a run:
    that in its export folder). After a fork, a runtime with one thread still works; with several threads, create a new
    one.

    Args:
        model: a `Slimmable`, the folder of a run, a model or a bundle, "hf:USER/NAME", one on the
            Hugging Face Hub, or "builtin", the network in the box.
        backend: "auto" is PyTorch for networks, and for bundles what they hold, OpenVINO first.
        threads: those that compute one request; PyTorch's number is that of the whole process.
        int8: chooses between the files of a bundle that has both.
        head: the classifier for `predict`, by the name of its data, if there are several.
        space: "shared" for embeddings that can be compared across widths; see docs/embedding.md.
    """

    def __init__(
        self,
        model: str | Path | Slimmable,
        backend: Backend | Literal["auto"] = "auto",
        threads: int | None = None,
        int8: bool | None = None,
        head: str | None = None,
        space: SpaceName = "own",
    ) -> None:
        self.threads, self.space = set_threads(threads), space_of(space)
        self.networks: Networks
        model = model if isinstance(model, Slimmable) else local_folder(model)
        folder = None if isinstance(model, Slimmable) else bundle_folder(model, backend)
        if folder and backend == "torch":
            raise UserError(f"{model} is a bundle, whose files onnx and openvino run: for PyTorch give the run itself")
        if folder:
            chosen = None if backend == "auto" else backend
            self.networks = BundleNetworks(read_bundle(folder), chosen, self.threads, int8, head, space)
        elif backend in ("torch", "auto"):
            self.networks = SlimmableNetworks(model, head, space)
        else:
            raise UserError(f"{backend} runs exported files: export some in the format {backend}, then Runtime(RUN)")
        self._latencies: dict[tuple[Task, int], dict[Width, float]] = {}
        self._measuring = threading.RLock()
        self._process = os.getpid()

    @property
    def gives(self) -> tuple[Task, ...]:
        """What it can do: give "features" by `embed`, or "classes" by `predict`, or both."""
        return tuple(task for task in ("features", "classes") if self.networks.widths(task))

    @property
    def widths(self) -> list[Width]:
        """Ascending: those of the features, or of the classifiers if there are no features."""
        return self.networks.widths(self.gives[0])

    @property
    def classes(self) -> list[str] | None:
        """The names of the classes that `predict` tells apart; None if it has no classifier."""
        return self.networks.classes if "classes" in self.gives else None

    def __repr__(self) -> str:
        return f"Runtime({self.networks.name}: {' and '.join(self.gives)} at {len(self.widths)} widths)"

    def embed(
        self,
        images: AnyImages,
        width: AnyWidth | None = None,
        latency_ms: float | None = None,
        on_error: OnError = "raise",
        batch_size: int = BATCH,
    ) -> np.ndarray:
        """Features of images, always of the encoder.

        Args:
            images: uint8 pixels (N x 3 x H x W or N x H x W x 3), an image file, a folder of them (see
                `us3l.deploy.image_files`), or several files, bytes, arrays or Pillow images.
            width: of the network (default: the widest).
            latency_ms: take the widest that was measured to embed that many images within that time. The first such
                request of each number of images waits for `measure`.
            on_error: what to do about an image that cannot be read: "raise" a `UserError`, or give it a row of "nan",
                with a warning.
            batch_size: images that are read and computed at once; no more are held.

        Returns:
            N x C, float32: one row for each image, in order.
        """
        return self._outputs(images, "features", width, latency_ms, on_error, batch_size)

    def predict(
        self,
        images: AnyImages,
        width: AnyWidth | None = None,
        latency_ms: float | None = None,
        on_error: OnError = "raise",
        batch_size: int = BATCH,
    ) -> Predictions:
        """The classes of images, by the classifier that evaluation learned.

        Args:
            images: as for `embed`.
            width: of the network (default: the widest that has a classifier).
            latency_ms: as for `embed`.
            on_error: as for `embed`; an image that cannot be read has NaN probabilities.
            batch_size: as for `embed`.

        Returns:
            Labels, class indices and probabilities: one row per image, in order.
        """
        logits = torch.from_numpy(self._outputs(images, "classes", width, latency_ms, on_error, batch_size))
        return Predictions(self.networks.classes, logits.softmax(1).numpy())

    def _outputs(
        self,
        images: AnyImages,
        task: Task,
        width: AnyWidth | None,
        latency_ms: float | None,
        on_error: OnError,
        size: int,
    ) -> np.ndarray:
        self._check_process()
        if width is not None and latency_ms is not None:
            raise UserError("give a width or latency_ms, not both")
        if on_error not in ("raise", "nan") or size < 1:
            raise UserError(f"on_error={on_error!r} must be 'raise' or 'nan', and batch_size={size} at least 1")
        if task not in self.gives:
            raise UserError(self.networks.why_not(task))
        some = listed(images)
        if latency_ms is not None:
            together = min(len(some), size)
            width = self.width_within(latency_ms * together / len(some), together, task)
        run = self.networks.run(self.networks.widths(task)[-1] if width is None else Width(width), task)
        parts: list[tuple[np.ndarray, np.ndarray]] = [
            (check_finite(run(batch.pixels)) if len(batch.pixels) else np.zeros((0, 0), np.float32), batch.readable)
            for batch in batches(some, self.networks.preprocessing, size, on_error)
        ]
        found = np.full((len(some), max(outputs.shape[1] for outputs, _ in parts)), np.nan, np.float32)
        if not found.shape[1]:
            raise UserError(f"none of the {len(some)} images can be read")
        readable = np.concatenate([good for _, good in parts])
        found[readable] = np.concatenate([outputs for outputs, _ in parts if len(outputs)])
        return found

    def _check_process(self) -> None:
        """The threads of a library do not live on in a forked process, which would wait for them forever."""
        if self._process == os.getpid():
            return
        if self.threads > 1:
            raise UserError(
                f"this Runtime was made in process {self._process}, and its {self.threads} threads are not in this "
                "fork of it: make a Runtime in each process after the fork (of a web server: in each worker, without "
                "preloading), start processes by 'spawn', or use threads=1"
            )
        self.networks.renew()
        self._measuring = threading.RLock()
        self._process = os.getpid()

    def width_within(self, latency_ms: float, batch: int = 1, task: Task | None = None) -> Width:
        """The widest network that was measured to take at most that time for a batch.

        Args:
            latency_ms: milliseconds for the whole batch.
            batch: images in it.
            task: "features" or "classes" (default: the first of what it gives).

        Returns:
            Its width. If even the fastest takes longer, that is a `UserError`.
        """
        table = [Candidate(width, {"latency_ms": ms}) for width, ms in self.latencies(batch, task).items()]
        choice = best_within(table, {"latency_ms": latency_ms})
        if not choice.fits:
            fastest = choice.candidate
            raise UserError(
                f"no width takes at most {latency_ms:g} ms for {batch} images here: "
                f"{fastest.width:g} is the fastest, with {fastest.figures['latency_ms']:.3g} ms"
            )
        return choice.candidate.width

    def latencies(self, batch: int = 1, task: Task | None = None) -> dict[Width, float]:
        """What `measure` found for that batch size; the first call measures.

        Args:
            batch: images in a request.
            task: "features" or "classes" (default: the first of what it gives).

        Returns:
            The p95 milliseconds per batch, by width.
        """
        with self._measuring:
            return self._latencies.get((task or self.gives[0], batch)) or self.measure(batch, task=task)

    def measure(
        self,
        batch: int = 1,
        widths: Sequence[Width] | None = None,
        turns: int = TURNS,
        task: Task | None = None,
    ) -> dict[Width, float]:
        """Time the networks now, and keep the figures for later requests.

        Args:
            batch: images in a request.
            widths: those to time (default: up to nine, spread evenly).
            turns: how often each width is timed.
            task: "features" or "classes" (default: the first of what it gives).

        Returns:
            The p95 milliseconds per batch, by width.
        """
        chosen: Task = task or self.gives[0]
        size = self.networks.preprocessing.size
        images = np.random.default_rng(0).integers(0, 256, (batch, 3, size, size), dtype=np.uint8)
        work = self.embed if chosen == "features" else self.predict
        with self._measuring:
            jobs = {
                width: lambda width=width: work(images, width=width)
                for width in (spread(self.networks.widths(chosen), MEASURED) if widths is None else widths)
            }
            found = {width: percentile(ms, 95) for width, ms in take_turns(jobs, turns).items()}
            self._latencies[chosen, batch] = found
            return found

    def adaptive(self, target_ms: float, batch: int = 1, **settings: Any) -> Adaptive:
        """Let the width follow the load, so that 95 % of requests of that size stay within the target.

        Args:
            target_ms: milliseconds per request.
            batch: images in a request.
            settings: those of `us3l.deploy.Controller`: `window`, `patience`, `headroom`.

        Returns:
            Something to call instead of this object, with `embed`, `predict` and a record of its `decisions`.
        """
        return Adaptive(self, Controller(self.latencies(batch), target_ms, **settings))


def bundle_folder(path: Path, backend: str) -> Path | None:
    """Where a path leads to a bundle, if it does: the path itself, or a run's export folder for other backends."""
    if (path / MANIFEST).is_file():
        return path
    exported = path / "export"
    return exported if backend in OPENERS and (exported / MANIFEST).is_file() else None


def spread(widths: Sequence[Width], most: int) -> list[Width]:
    """At most this many of the widths, evenly, with both ends.

    >>> spread([0.25, 0.4, 0.5, 0.75, 1.0], 3)
    [0.25, 0.5, 1.0]
    """
    return [widths[place] for place in evenly_spaced(len(widths), most)]
