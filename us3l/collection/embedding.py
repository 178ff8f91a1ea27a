"""What `us3l embed` does: every image of a source through one network, a part at a time."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np

from us3l.collection.shared_space import SpaceName, fit_missing
from us3l.collection.vectors import Embeddings, Portion, building, check_out, kind_of, read_embeddings
from us3l.data.crops import Read, Squares, unreadable
from us3l.data.loader import default_workers, read_ahead
from us3l.data.preprocessing import Preprocessing
from us3l.data.sources import Data, ImageSet, Split, find
from us3l.data.streamed import ImageFiles
from us3l.deploy.evidence import calibrate_rest
from us3l.deploy.picking import pick_width
from us3l.evaluation.linear import Probe
from us3l.run import Run
from us3l.run.identity import source_of
from us3l.runtime.backends import Backend, Forward
from us3l.runtime.networks import Files, Shared, Task
from us3l.runtime.runtime import BATCH, Runtime
from us3l.system.devices import Device, choose_device, moved
from us3l.system.errors import UserError
from us3l.system.files import append_lines
from us3l.system.progress import SILENT, Count, Progress
from us3l.system.stopping import Interrupted, stop_requests
from us3l.width import Width

PART = 16  # batches whose embeddings are written at once


@dataclass(frozen=True)
class Embedded:
    """Images that were embedded, in a file or in memory."""

    width: Width
    images: int
    """All there were, the damaged ones counted."""
    damaged: list[str]
    """Those that could not be read, each with the reason."""
    path: Path | None
    """Of the file; None of embeddings in memory."""
    seconds: float
    computed: int
    """Images of this call: fewer than all if it went on with a file that had been begun."""
    in_memory: Embeddings | None = None

    @cached_property
    def embeddings(self) -> Embeddings:
        """Names, values and labels; of a file it is read when this is first asked for."""
        if self.in_memory is not None:
            return self.in_memory
        assert self.path is not None
        return read_embeddings(self.path)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A dictionary for each image."""
        return self.embeddings.rows

    @property
    def images_per_s(self) -> float:
        return self.computed / self.seconds if self.seconds else 0.0


def embed_images(
    model: Path,
    data: Data,
    width: Width | None = None,
    latency_ms: float | None = None,
    out: Path | None = None,
    space: SpaceName = "own",
    space_data: Data | None = None,
    split: Literal["every", "train", "test"] = "every",
    data_root: Path | None = None,
    backend: Backend | Literal["auto"] = "auto",
    device: Device = "auto",
    threads: int | None = None,
    int8: bool | None = None,
    overwrite: bool = False,
    progress: Progress = SILENT,
) -> Embedded:
    """Embed every image of a source.

    The values are those of `Runtime.embed` for the same width and backend, to the bit: images are decoded in the same
    way, and computed in the same batches.

    Args:
        model: the folder of a run, of a model, or of a bundle.
        data: images; see `us3l.data.sources.Data`.
        width: of the network (default: the widest).
        latency_ms: take the best width within that time per image: by the run's profile, as `pick` does; a bundle has
            none, and is timed here.
        out: the file to write, .parquet, .npz or .csv (default: none, the embeddings stay in memory). One that was
            begun for the same network and images is gone on with.
        space: "shared" gives embeddings that can be compared across widths: queries at 0.25x find what was embedded at
            1x. The map that this takes is fitted when a width first needs it, and kept in the run's folder.
        space_data: images to fit it on, without labels (default: those of the training).
        split: which images, where the source has a training and a test part.
        data_root: where named data sets lie.
        backend: as for `Runtime`.
        device: where PyTorch computes.
        threads: as for `Runtime`.
        int8: as for `Runtime`.
        overwrite: start again, and replace a file of that name.
        progress: told how far it is, and which images are damaged.
    """
    if out is not None:
        kind_of(out)
    runtime = Runtime(model, backend, threads, int8, space=space)
    chosen = choose_width(runtime, model, width, latency_ms, progress)
    if space == "shared" and isinstance(runtime.networks, Shared):
        fit_missing(Run(model), runtime.networks.net, [chosen], space_data, progress)
    files = files_of(data, split, data_root, progress)
    about = described(runtime, model, chosen, files, data)
    if out is not None and check_out(out, about, overwrite):
        progress.say(f"{out} is finished: it holds these embeddings already")
        return Embedded(chosen, len(files), [], out, 0.0, 0)
    started = time.monotonic()
    with on_device(runtime, device), stop_requests(progress.say) as asked_to_stop:
        afterwards = "" if out is None else ": the same call goes on with its file"
        forward = runtime.networks.run(chosen, "features")
        job = EmbeddingJob(files, forward, runtime.networks.preprocessing, asked_to_stop, afterwards)
        if out is None:
            with progress.counting("embedding", len(files)) as count:
                made = list(job.parts(0, count))
            found, damaged = joined(made, about)
            return Embedded(chosen, len(files), damaged, None, time.monotonic() - started, len(files), found)
        with building(out, about, overwrite) as file:
            first = min(file.done * PART * BATCH, len(files))
            if first:
                progress.say(f"going on with {out}: {first:,} of {len(files):,} images are done")
            with progress.counting("embedding", len(files) - first) as count:
                for part in job.parts(first, count):
                    file.add(part)
            damaged = file.damaged()
            if len(damaged) == len(files):
                file.remove()
                raise unreadable(files.name, damaged)
            file.finish()
    note_damaged(out, damaged)
    return Embedded(chosen, len(files), damaged, out, time.monotonic() - started, len(files) - first)


def joined(parts: list[Portion], about: dict[str, Any]) -> tuple[Embeddings, list[str]]:
    damaged = [line for part in parts for line in part.damaged]
    filled = [part for part in parts if part.files]
    if not filled:
        raise unreadable(str(about["data"]["source"]), damaged)
    labels = None if filled[0].labels is None else [label for part in filled for label in part.labels or ()]
    names = [name for part in filled for name in part.files]
    return Embeddings(names, np.concatenate([part.values for part in filled]), labels, about), damaged


@dataclass(frozen=True)
class EmbeddingJob:
    """Images, and a network to embed them with."""

    files: ImageFiles
    forward: Forward
    preprocessing: Preprocessing
    asked_to_stop: Callable[[], bool]
    afterwards: str = ""
    """What to say when it was asked to stop."""

    def parts(self, first: int, count: Count) -> Iterator[Portion]:
        """The images from the first on, some batches at a time; no more are held."""
        batches = self._batches(first, count)
        while some := list(islice(batches, PART)):
            labels = None if some[0].labels is None else [label for one in some for label in one.labels or ()]
            yield Portion(
                [name for one in some for name in one.files],
                np.concatenate([one.values for one in some if len(one.files)] or [np.zeros((0, 0), np.float32)]),
                labels,
                [line for one in some for line in one.damaged],
            )

    def _batches(self, first: int, count: Count) -> Iterator[Portion]:
        total = len(self.files)
        items = ((0, list(range(start, min(start + BATCH, total)))) for start in range(first, total, BATCH))
        reader = Squares(self.files, self.preprocessing.resize, exact=True)
        for number, (read, _) in enumerate(read_ahead(reader, items, default_workers(), pinned=False)):
            yield self._embedded(read)
            done = min(first + (number + 1) * BATCH, total)
            count.more(done - first - number * BATCH)
            if self.asked_to_stop() and done < total:
                raise Interrupted(f"stopped after {done:,} of {total:,} images{self.afterwards}")

    def _embedded(self, read: Read) -> Portion:
        indices = self.files.chosen[read.indices]
        values = np.zeros((0, 0), np.float32)
        if len(indices):
            values = self.forward(self.preprocessing.apply(read.pixels[0]).contiguous().numpy())
        source = self.files.source
        labels = None
        if self.labelled:
            codes = source.labels[indices].tolist()
            labels = [source.classes[code] if code >= 0 else None for code in codes]
        return Portion([source.name(index) for index in indices], values, labels, read.damaged)

    @cached_property
    def labelled(self) -> bool:
        """Whether any of the images has a label."""
        return bool(self.files.source.classes) and bool((self.files.source.labels[self.files.chosen] >= 0).any())


def choose_width(
    runtime: Runtime,
    model: Path,
    width: Width | None,
    latency_ms: float | None,
    progress: Progress,
    task: Task = "features",
) -> Width:
    """The width that was asked for, or the best within a time, or the widest that there is for a task."""
    if width is not None and latency_ms is not None:
        raise UserError("give `width` or `latency_ms`, not both")
    if task not in runtime.gives:
        raise UserError(runtime.networks.why_not(task))
    if latency_ms is not None and isinstance(runtime.networks, Files):
        width = runtime.width_within(latency_ms, task=task)
        progress.say(f"{width:g}x: the widest within {latency_ms:g} ms per image, as timed now")
    elif latency_ms is not None:
        picked = pick_width(Run(model), latency_ms=latency_ms)
        if not picked.fits:
            raise UserError(f"{picked.title}: allow more time")
        progress.say(picked.title)
        width = picked.width
    elif width is None:
        width = runtime.networks.widths(task)[-1]
    if isinstance(runtime.networks, Shared):
        width = runtime.networks.net.check(width)
        calibrate_rest(Run(model), runtime.networks.net, [width], None, progress)
    return width


def files_of(data: Data, split: Split, root: Path | None, progress: Progress) -> ImageFiles:
    """The images, still to be decoded."""
    if isinstance(data, ImageSet):
        return find(data.images, split, None, root, progress)
    return find(data, split, None, root, progress)


def described(runtime: Runtime, model: Path, width: Width, files: ImageFiles, data: Data) -> dict[str, Any]:
    """What makes embeddings these and no others."""
    networks, network = runtime.networks, dict[str, Any]()
    if isinstance(networks, Files):
        entry = networks.entries["features"][width]
        network = {"backend": networks.backend, "files": entry.files}
    else:
        weights = Run(model).weights
        network = {"backend": "torch", "weights": weights.weights, "statistics": weights.statistics.get(f"{width:g}")}
        if isinstance(networks, Shared) and networks.space == "shared":
            placed = networks.map(width)
            network["map"] = digest(placed.probe)
            if placed.beside is not None:
                network["beside"] = weights.statistics.get(f"{placed.beside:g}")
    source = source_of(data) if isinstance(data, str | Path) else files.name
    return {
        "width": width.as_plain(),
        "space": runtime.space,
        "network": network,
        "preprocessing": networks.preprocessing.to_plain(),
        "data": {"source": source, "images": len(files), "fingerprint": files.fingerprint()},
    }


def digest(probe: Probe) -> str:
    """What tells a map from others."""
    values = (tensor.numpy().tobytes() for tensor in (probe.weight, probe.bias))
    return hashlib.sha256(b"".join(values)).hexdigest()


def on_device(runtime: Runtime, device: Device) -> AbstractContextManager[None]:
    """PyTorch's networks on another device for a while; files run on the CPU."""
    if isinstance(runtime.networks, Shared):
        return moved(runtime.networks.net, choose_device(device))
    return nullcontext()


def note_damaged(out: Path, damaged: list[str]) -> None:
    """Name all images that could not be read, beside the file."""
    path = out.with_name(f"{out.name}.damaged.txt")
    path.unlink(missing_ok=True)
    if damaged:
        append_lines(path, damaged)
