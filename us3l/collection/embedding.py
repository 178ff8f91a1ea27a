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
from typing import Any

import numpy as np

from us3l.collection.collection_settings import CollectionSettings, EmbeddingSettings
from us3l.collection.shared_space import fit_missing
from us3l.collection.vectors import Embeddings, Portion, building, check_out, check_suffix, read_embeddings
from us3l.data.crops import Read, Squares, unreadable
from us3l.data.loader import default_workers, read_ahead
from us3l.data.preprocessing import Preprocessing
from us3l.data.sources import Data, ImageSet, find
from us3l.data.streamed import ImageFiles
from us3l.deploy.deployment_settings import PickSettings
from us3l.deploy.picking import pick_width
from us3l.evaluation.linear import Probe
from us3l.evaluation.prepare import calibrate_left_out
from us3l.run import Run
from us3l.run.identity import source_of
from us3l.runtime.backends import Forward, check_finite
from us3l.runtime.networks import BundleNetworks, SlimmableNetworks, Task
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
    run: Run, data: Data, settings: EmbeddingSettings | None = None, progress: Progress = SILENT
) -> Embedded:
    """Embed every image of a source.

    The values are those of `Runtime.embed` for the same width and backend, to the bit: images are decoded in the same
    way, and computed in the same batches. A file that was begun for the same network and images is continued. The map
    to the shared space is fitted when a width first needs it, and kept in the run's folder.

    Args:
        run: A run, the folder of a model or of a bundle, or a network in memory.
        data: Images; see `us3l.data.sources.Data`.
        settings: Which network, and what computes it.
        progress: Told how far it is, and which images are damaged.
    """
    settings = settings or EmbeddingSettings()
    out, overwrite = None if settings.out is None else Path(settings.out), settings.overwrite
    if out is not None:
        check_suffix(out)
    runtime = runtime_of(run, settings, space=settings.space)
    chosen = choose_width(runtime, run, settings, progress)
    if settings.space == "shared" and isinstance(runtime.networks, SlimmableNetworks):
        maps = fit_missing(run, runtime.networks.net, [chosen], settings.space_data, progress)
        runtime.networks.maps.update(maps)
    files = files_of(data, settings, progress)
    about = described(runtime, run, chosen, files, data)
    if out is not None and check_out(out, about, overwrite):
        progress.say(f"{out} is finished: it holds these embeddings already")
        return Embedded(chosen, len(files), [], out, 0.0, 0)
    started = time.monotonic()
    with on_device(runtime, settings.device), stop_requests(progress.say) as asked_to_stop:
        afterwards = "" if out is None else ": the same call goes on with its file"
        forward = runtime.networks.run(chosen, "features")
        job = EmbeddingJob(files, forward, runtime.networks.preprocessing, asked_to_stop, afterwards)
        if out is None:
            with progress.counting("embedding", len(files)) as count:
                found = merged(list(job.parts(0, count)))
            if not found.files:
                raise unreadable(files.name, found.damaged)
            embeddings = Embeddings(found.files, found.values, found.labels, about)
            seconds = time.monotonic() - started
            return Embedded(chosen, len(files), found.damaged, None, seconds, len(files), embeddings)
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


def merged(portions: list[Portion]) -> Portion:
    """Return several portions as one."""
    labels = None if portions[0].labels is None else [label for part in portions for label in part.labels or ()]
    return Portion(
        [name for part in portions for name in part.files],
        np.concatenate([part.values for part in portions if part.files] or [np.zeros((0, 0), np.float32)]),
        labels,
        [line for part in portions for line in part.damaged],
    )


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
            yield merged(some)

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
            values = check_finite(self.forward(self.preprocessing.apply(read.pixels[0]).contiguous().numpy()))
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


def runtime_of(run: Run, settings: CollectionSettings, **more: Any) -> Runtime:
    """Return what runs the networks of a run, of a bundle's folder, or of a network in memory."""
    model = run.folder if run.saved else run.network
    return Runtime(model, settings.backend, settings.threads, settings.int8, **more)


def choose_width(
    runtime: Runtime, run: Run, settings: CollectionSettings, progress: Progress, task: Task = "features"
) -> Width:
    """Return the width that was asked for, or the best within a time, or the widest that there is for a task."""
    latency_ms = settings.latency_ms
    if task not in runtime.gives:
        raise UserError(runtime.networks.why_not(task))
    if latency_ms is not None and isinstance(runtime.networks, BundleNetworks):
        width = runtime.width_within(latency_ms, task=task)
        progress.say(f"{width:g}x: the widest within {latency_ms:g} ms per image, as timed now")
    elif latency_ms is not None:
        picked = pick_width(run, PickSettings(latency_ms=latency_ms))
        if not picked.fits:
            raise UserError(f"{picked.title}: allow more time")
        progress.say(picked.title)
        width = picked.width
    else:
        width = runtime.networks.widths(task)[-1] if settings.width is None else Width(settings.width)
    if isinstance(runtime.networks, SlimmableNetworks):
        width = runtime.networks.net.check(width)
        calibrate_left_out(run, runtime.networks.net, [width], None, progress)
    return width


def files_of(data: Data, settings: CollectionSettings, progress: Progress) -> ImageFiles:
    """Return the images, still to be decoded."""
    images = data.images if isinstance(data, ImageSet) else data
    return find(images, settings.split, None, settings.data_root, progress)


def described(runtime: Runtime, run: Run, width: Width, files: ImageFiles, data: Data) -> dict[str, Any]:
    """What makes embeddings these and no others."""
    networks, network = runtime.networks, dict[str, Any]()
    if isinstance(networks, BundleNetworks):
        entry = networks.entries["features"][width]
        network = {"backend": networks.backend, "files": entry.files}
    else:
        weights = run.weights
        network = {"backend": "torch", "weights": weights.weights, "statistics": weights.statistics.get(f"{width:g}")}
        if isinstance(networks, SlimmableNetworks) and networks.space == "shared":
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
    if isinstance(runtime.networks, SlimmableNetworks):
        return moved(runtime.networks.net, choose_device(device))
    return nullcontext()


def note_damaged(out: Path, damaged: list[str]) -> None:
    """Name all images that could not be read, beside the file."""
    path = out.with_name(f"{out.name}.damaged.txt")
    path.unlink(missing_ok=True)
    if damaged:
        append_lines(path, damaged)
