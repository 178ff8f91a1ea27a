"""A model made ready to be served: its widths, how long each takes here, and how many images fit in one call."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image as Pillow

from us3l.collection.shared_space import SpaceName, shared_maps
from us3l.data.decode import Damaged
from us3l.deploy.latency import percentile, take_turns
from us3l.run.bundles import MANIFEST, read_bundle
from us3l.runtime.adaptive import Controller
from us3l.runtime.backends import Backend, Forward, run_onnx
from us3l.runtime.networks import BundleNetworks, SlimmableNetworks, Task
from us3l.runtime.runtime import MEASURED, Runtime, bundle_folder, spread
from us3l.serving.settings import ServiceSettings
from us3l.system.devices import usable_cores
from us3l.system.errors import UserError
from us3l.system.files import checksum
from us3l.width import Width

TURNS = 3
SHORT_MS = 2.0  # per image, which one thread computes
KEPT = 1000  # decisions of a controller: a service runs for months


class ServedModel:
    """A `Runtime` whose answers do not depend on what else is computed at the same time.

    Several images in one call may take another path through a library than one image alone, and differ in the last
    bits: PyTorch does that, ONNX Runtime and OpenVINO do not. `prepare` finds out, and `compute` then gives to the bit
    what `Runtime.embed` gives for each image alone.

    Args:
        path: The folder of a run, of a model or of a bundle.
        settings: Those of the service.
        backend: As in `Runtime`.
        threads: That compute one call.
        int8: As in `Runtime`.
        head: As in `Runtime`.
        space: As in `Runtime`.
    """

    def __init__(
        self,
        path: Path,
        settings: ServiceSettings,
        backend: Backend | Literal["auto"] = "auto",
        threads: int = 1,
        int8: bool | None = None,
        head: str | None = None,
        space: SpaceName = "own",
    ) -> None:
        self.settings, self._most_pixels = settings, round(1e6 * settings.max_megapixels)
        self.runtime = Runtime(path, backend, threads, int8, head, space)
        self.name = path.resolve().name
        networks = self.runtime.networks
        self.backend = networks.backend if isinstance(networks, BundleNetworks) else "torch"
        if isinstance(networks, BundleNetworks):
            torch.set_num_threads(1)  # it only prepares images, in each worker
            self.identity = checksum(networks.bundle.folder / MANIFEST)[:12]
        else:
            assert isinstance(networks, SlimmableNetworks)
            self.identity = networks.net.digest[:12]
        self.gives = self.runtime.gives
        self.widths: dict[Task, list[Width]] = {task: self._usable(task) for task in self.gives}
        for task, widths in self.widths.items():
            if not widths:
                raise UserError(f"{path} has no calibrated width: us3l.calibrate(net, images), and save it")
            if settings.width is not None:
                self.width(settings.width, task)
        self.latencies: dict[Task, dict[Width, float]] = {}
        self.controllers: dict[Task, Controller] = {}
        self._sizes: dict[tuple[Task, Width], list[int]] = {}
        self._runs: dict[tuple[Task, Width], Forward] = {}
        self._lock, self._computing = threading.Lock(), threading.Lock()

    def _usable(self, task: Task) -> list[Width]:
        """Return the widths that can be asked for: calibrated, and mapped into the shared space if that is wanted."""
        networks = self.runtime.networks
        widths = networks.widths(task)
        if not isinstance(networks, SlimmableNetworks):
            return widths
        if task == "features" and self.runtime.space == "shared":
            mapped = shared_maps(networks.run_folder, networks.net) if networks.run_folder else {}
            widths = [width for width in widths if width in mapped] or [networks.net.widths[-1]]
            networks.map(widths[-1])  # says what to do if there is none
        return [width for width in widths if networks.net.calibrated(width)]

    @property
    def classes(self) -> list[str]:
        """Return the names of the classes; none if it has no classifier."""
        return self.runtime.classes or []

    def width(self, wanted: Width, task: Task) -> Width:
        """Return the name of a width that a request asks for, or raise an error that lists those there are."""
        networks, usable = self.runtime.networks, self.widths[task]
        width = wanted
        if isinstance(networks, SlimmableNetworks) and usable[0] <= wanted <= usable[-1]:
            width = networks.net.canonical(wanted)
            if not width.plain and task == "features" and self.runtime.space == "own":
                usable = [*usable, width] if networks.net.calibrated(width) else usable
        if width in usable:
            return width
        shown = ", ".join(f"{width:g}" for width in spread(usable, MEASURED))
        more = f" and {len(usable) - MEASURED} between them" if len(usable) > MEASURED else ""
        raise UserError(f"there is no width {wanted:g} for {task}: choose from {shown}{more}")

    def prepare(self, previous: ServedModel | None = None) -> None:
        """Time the widths and find out which may share a call. It takes seconds; answers are right without it too.

        Args:
            previous: The model that this one takes over from: it begins at that one's width.
        """
        image = sample(self.runtime.networks.preprocessing.resize)
        for task, usable in self.widths.items():
            widths = spread(usable, MEASURED)
            for width in widths:
                self._sizes[task, width] = self._exact_sizes(task, width)
            jobs: dict[Width, Callable[[], object]] = {
                width: lambda task=task, width=width: self.compute([self.read(image)], task, width)  # type: ignore[misc]
                for width in widths
            }
            times = take_turns(jobs, TURNS)
            self.latencies[task] = {width: percentile(times[width], 50) for width in sorted(times)}
            controller = Controller(self.latencies[task], self.settings.target_ms)
            if previous and task in previous.controllers:
                controller.width = max([w for w in widths if w <= previous.controllers[task].width], default=widths[0])
            self.controllers[task] = controller

    def _exact_sizes(self, task: Task, width: Width) -> list[int]:
        """Return how many images give in one call, to the bit, what they give one by one.

        Which kernels run is decided by the shapes, not by the values, so that a few images tell.
        """
        size, most = self.runtime.networks.preprocessing.size, self.settings.batch_size
        images = np.random.default_rng(0).standard_normal((most, 3, size, size), np.float32)
        run = self._run(task, width)
        alone = np.concatenate([run(images[i : i + 1]).copy() for i in range(most)])
        sizes = [2**power for power in range(1, most.bit_length()) if 2**power <= most]
        return [1, *(n for n in sizes if np.array_equal(run(images[:n]), alone[:n]))]

    def _run(self, task: Task, width: Width) -> Forward:
        run = self._runs.get((task, width))
        if run is None:
            with self._lock:
                run = self._runs[task, width] = self._runs.get((task, width)) or self._open(task, width)
        return run

    def _open(self, task: Task, width: Width) -> Forward:
        networks, threads = self.runtime.networks, self.runtime.threads
        if not isinstance(networks, BundleNetworks) or networks.backend != "onnx" or threads == 1:
            return networks.run(width, task)
        file = networks.bundle.path(networks.entries[task][width])
        run, single = run_onnx(file, threads, spinning=True), run_onnx(file, 1)
        size = networks.preprocessing.size
        image = np.random.default_rng(0).standard_normal((1, 3, size, size), np.float32)
        times = take_turns({"single": lambda: single(image)}, TURNS)
        if min(times["single"]) < SHORT_MS and np.array_equal(run(image), single(image)):
            return single  # clients that come together would wait for each other

        def run_alone(images: np.ndarray) -> np.ndarray:
            with self._computing:  # each call has all processors, and two would spin in each other's way
                return run(images)

        return run_alone

    def automatic_width(self, task: Task) -> Width:
        """Return the width of requests that name none, at this moment."""
        if self.settings.width is not None:
            return self.width(self.settings.width, task)
        return self.controllers[task].width if task in self.controllers else self.widths[task][-1]

    def narrowest(self, task: Task) -> Width:
        """Return the least width that requests which name none may get."""
        return self.automatic_width(task) if self.settings.width is not None else next(iter(self.latencies[task]))

    def idle_ms(self, task: Task, width: Width) -> float:
        """Return what an image takes on the idle machine: measured at that width or at the next that was."""
        times = self.latencies[task]
        if width in times:
            return times[width]
        return times[min([measured for measured in times if measured >= width], default=max(times))]

    def together(self, task: Task, width: Width) -> int:
        """Return how many images `compute` gives to the network at once."""
        return self._sizes.get((task, width), [1])[-1]

    def read(self, image: bytes, place: str = "image 0") -> np.ndarray:
        """Return an image's pixels, as `Runtime` reads them, 3 x H x W; a `UserError` says what is wrong with it."""
        try:
            pixels = self.runtime.networks.preprocessing.decode(image, self._most_pixels)
        except Damaged as error:
            raise UserError(f"cannot read {place}: {error}") from None
        return pixels.transpose(2, 0, 1)

    def compute(self, pixels: Sequence[np.ndarray], task: Task, width: Width) -> np.ndarray:
        """Return features or logits of some images, one row each.

        Args:
            pixels: From `read`.
            task: "features" or "classes".
            width: Of the network.
        """
        run, sizes = self._run(task, width), self._sizes.get((task, width), [1])
        rows, done = [], 0
        while done < len(pixels):
            size = max(n for n in sizes if n <= len(pixels) - done)
            rows.append(run(self.runtime.networks.preprocessing.apply_decoded(pixels[done : done + size])).copy())
            done += size
        return rows[0] if len(rows) == 1 else np.concatenate(rows)

    def observe(self, task: Task, width: Width, latency_ms: float, now: float) -> None:
        """Let the width follow the load: called for requests that named none."""
        if task in self.controllers and self.settings.width is None:
            controller = self.controllers[task]
            controller.observe(width, latency_ms, now)
            del controller.decisions[:-KEPT]

    def about(self) -> dict[str, Any]:
        """Return what clients may know of it."""
        networks = self.runtime.networks
        return {
            "model": self.identity,
            "name": self.name,
            "backend": self.backend,
            "space": self.runtime.space,
            "image_size": networks.preprocessing.size,
            "target_ms": self.settings.target_ms,
            "classes": self.classes,
            "tasks": {
                {"features": "embed", "classes": "predict"}[task]: {
                    "width": self.automatic_width(task),
                    "widths": widths,
                    "idle_ms": [{"width": width, "ms": ms} for width, ms in self.latencies.get(task, {}).items()],
                    "images_at_once": max([sizes[-1] for (of, _), sizes in self._sizes.items() if of == task] or [1]),
                }
                for task, widths in self.widths.items()
            },
        }


def usual_threads(place: Path, backend: str) -> int:
    """Return how many processors compute an image together by default.

    Several threads of ONNX Runtime shorten the wait of a lone client, and cost nothing when there are many.
    """
    folder = bundle_folder(place, backend)
    if folder is None or backend in ("torch", "openvino"):
        return 1
    formats = {entry.format for entry in read_bundle(folder).entries}
    return usable_cores() if backend == "onnx" or "openvino" not in formats else 1


def sample(side: int) -> bytes:
    """Return a JPEG to time the reading of images with."""
    coarse = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    file = io.BytesIO()
    Pillow.fromarray(coarse).resize((side, side), Pillow.Resampling.BICUBIC).save(file, "JPEG", quality=90)
    return file.getvalue()
