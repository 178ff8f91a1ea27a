"""How fast this machine trains and reads images, and how much memory a step takes."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from PIL import Image

from us3l.data.images import Images, ImageSet, Step
from us3l.data.sources import find
from us3l.data.streamed import ImageFiles
from us3l.distributed.launching import make_fabric
from us3l.system.devices import Precision
from us3l.training.recipes import Recipe
from us3l.training.trainer import Trainer

PHOTOS, PHOTO_SIZE = 64, (640, 480)
FEWEST, MOST = 2, 50  # steps that are timed


@dataclass(frozen=True)
class Timed:
    """Some steps, or some batches of a loader."""

    images: int
    seconds: float
    waited: float = 0.0
    """Of the seconds, those of waiting for images."""
    memory: float | None = None
    """Bytes at the peak, beside what was taken before."""

    @property
    def speed(self) -> float:
        return self.images / self.seconds


@contextmanager
def photos(count: int = PHOTOS) -> Iterator[ImageFiles]:
    """JPEGs of the size of photographs, in a folder that is gone afterwards."""
    draw = np.random.default_rng(0)
    with TemporaryDirectory() as folder:
        for number in range(count):
            coarse = Image.fromarray(draw.integers(0, 256, (15, 20, 3), np.uint8)).resize(
                PHOTO_SIZE, Image.Resampling.BICUBIC
            )
            grain = draw.integers(-12, 13, (PHOTO_SIZE[1], PHOTO_SIZE[0], 1))
            pixels = np.clip(np.asarray(coarse, np.int16) + grain, 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(Path(folder) / f"{number:03}.jpg", quality=90)
        yield find(folder, "all")


def in_memory(count: int, size: int) -> ImageSet:
    generator = torch.Generator().manual_seed(0)
    return ImageSet("noise", torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, generator=generator))


def time_steps(
    recipe: Recipe, images: Images, batch: int, device: torch.device, precision: Precision, seconds: float
) -> Timed:
    """Training steps of full network and sub-networks, after one that does not count.

    Args:
        recipe: What is trained.
        images: On what.
        batch: Images per step.
        device: Where.
        precision: In which arithmetic.
        seconds: About how long.
    """
    before = memory_now(device)
    trainer = Trainer(
        replace(recipe, batch_size=batch, max_steps=2 * MOST, epochs=2 * MOST),
        images,
        make_fabric(device.type, 1, precision),
    )
    trainer.step = MOST - 1  # in the middle of a run, where sub-networks are trained too
    trainer.train_step().losses[0].item()
    started, waited, steps = time.perf_counter(), 0.0, 0
    while steps < FEWEST or (steps < MOST and time.perf_counter() - started < seconds):
        done = trainer.train_step()
        waited += trainer.waited
        steps += 1
        if steps % 10 == 0 or device.type == "cpu":
            done.losses[0].item()  # else the device would be far behind the clock
    done.losses[-1].item()
    took = time.perf_counter() - started
    peak = memory_peak(device)
    used = None if before is None or peak is None else max(0.0, peak - before)
    return Timed(steps * trainer.batch, took, waited, used)


def time_loader(recipe: Recipe, files: ImageFiles, batch: int, device: torch.device, seconds: float) -> Timed:
    """Views of images that are read, after the first batches, before which the processes had to start."""
    order = torch.arange(len(files))
    numbers = itertools.count()
    steps = (Step(number, number, torch.roll(order, number)[:batch]) for number in numbers)
    reading = files.views(recipe.views, steps, 0, recipe.objective.views, device=device, own=recipe.own_views)
    next(reading)
    started, count, batches = time.perf_counter(), 0, 0
    while batches < FEWEST or time.perf_counter() - started < seconds:
        count += len(next(reading))
        batches += 1
    found = Timed(count, time.perf_counter() - started)
    reading.close()  # type: ignore[attr-defined]  # and with it its processes
    return found


def memory_now(device: torch.device) -> float | None:
    """Bytes in use on the device, whose peak is counted from now on; on a CPU those of the process."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return float(torch.cuda.memory_allocated(device))
    return _status("VmHWM") if device.type == "cpu" else None  # the highest so far: only what exceeds it counts


def memory_peak(device: torch.device) -> float | None:
    """The most bytes since `memory_now`."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    return _status("VmHWM") if device.type == "cpu" else None


def _status(name: str) -> float | None:
    """A number of bytes that Linux tells of this process."""
    try:
        text = Path("/proc/self/status").read_text(encoding="utf-8")
        return 1024.0 * int(text.split(f"{name}:")[1].split()[0])
    except (OSError, IndexError, ValueError):
        return None
