"""Images read as they are needed, by worker processes: for sets that do not fit into memory as one tensor.

What an image looks like depends on (seed, epoch, the image) alone, never on the workers. A run that goes on in the
middle of an epoch asks for the steps that are left, and gets the same views as if it had never stopped:

>>> from us3l.data.sources import find
>>> def rest_of_epoch(data, epoch, first):
...     files = find(data, "pretrain")
...     order = files.order(torch.Generator().manual_seed(epoch))
...     steps = [Step(number, epoch, indices) for number, indices in enumerate(order.split(256))]
...     for batch in files.views(Views(size=224), steps[first:], seed=0):
...         view1, view2 = batch.views
"""

from __future__ import annotations

import gc
import os
import signal
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from us3l.data.catalogue import Catalogue
from us3l.data.decode import Damaged, attempt, content
from us3l.data.images import Batch, Channels, ImageSet, Step, checksum, share, stand_ins
from us3l.data.memory import decode_all
from us3l.data.order import block_order
from us3l.data.preprocessing import Preprocessing
from us3l.data.spec import MEAN, STD, Views
from us3l.data.views import ASPECT, BLUR_SIGMA, blur_radius, normalise
from us3l.errors import UserError
from us3l.seeds import seed_from

WITNESSES = 16  # images whose bytes are part of a fingerprint
MOST_SIZES = 2**16  # images whose size is
WORKERS_VARIABLE = "US3L_WORKERS"
Read = tuple[list[Tensor], list[int], list[str]]
"""Views (uint8), the indices of the images that they are of, and those that are damaged, each with the reason."""


@dataclass(frozen=True)
class ImageFiles:
    """Images of any sizes that are still to be decoded, and what is known about them."""

    name: str
    source: Catalogue
    chosen: np.ndarray
    """Rising indices into the source."""
    skipped: Sequence[str] = ()
    """None is known to be damaged before it is read."""

    def __len__(self) -> int:
        return len(self.chosen)

    @property
    def total(self) -> int:
        return len(self)

    @property
    def labels(self) -> Tensor | None:
        labels = self.source.labels[self.chosen]
        return torch.from_numpy(labels) if (labels >= 0).all() else None

    @property
    def classes(self) -> list[str] | None:
        return None if self.labels is None else self.source.classes

    def nbytes(self, size: int) -> int:
        """The memory that all images need when decoded at a size."""
        return len(self) * 3 * size * size

    def subset(self, indices: Tensor) -> ImageFiles:
        """The images at these rising indices."""
        return replace(self, chosen=self.chosen[indices.numpy()])

    def to(self, _: torch.device) -> ImageFiles:
        return self

    def order(self, generator: torch.Generator) -> Tensor:
        """All of 0 to N - 1 in a random order; where the source lies in blocks, one that is fast to read."""
        blocks = self.source.blocks
        return (
            torch.randperm(len(self), generator=generator)
            if blocks is None
            else block_order(blocks, self.chosen, generator)
        )

    def sample(self, count: int, generator: torch.Generator, side: int | None = None) -> ImageSet:
        chosen = torch.randperm(len(self), generator=generator)[:count].sort().values
        images = decode_all(self.subset(chosen), side)
        return images.subset(torch.randperm(len(images), generator=generator))  # files are sorted by class

    def batches(
        self, preprocessing: Preprocessing, batch_size: int = 250, workers: int | None = None
    ) -> Iterator[Batch]:
        """See `us3l.data.images.Images`; `workers` as for `views`."""
        whole = [(0, indices.tolist()) for indices in torch.arange(len(self)).split(batch_size)]
        dataset = _AtSize(self, preprocessing.resize)
        return _without_empty(_batches(self, dataset, whole, preprocessing.apply, workers), self.name)

    def views(
        self,
        views: Views,
        steps: Sequence[Step],
        seed: int,
        count: int = 2,
        part: tuple[int, int] = (0, 1),
        device: torch.device | None = None,
        mean: Channels = MEAN,
        std: Channels = STD,
        workers: int | None = None,
    ) -> Iterator[Batch]:
        """See `us3l.data.images.Images`; draws are made for each image by itself, and the transforms are torchvision's.

        `workers` is the number of decoding processes (default: see `default_workers`; 0: in this process).
        """

        def to_float(pixels: Tensor) -> Tensor:
            return normalise(pixels.to(device, non_blocking=True).float().div_(255), mean, std)

        shares = [(step.epoch, share(step.indices, part).tolist()) for step in steps]
        pinned = device is not None and device.type == "cuda"
        batches = _batches(self, _RandomViews(self, views, seed, count), shares, to_float, workers, pinned)
        for (_, indices), batch in zip(shares, batches, strict=True):
            if len(batch) < len(indices):
                raise _unreadable(self.name, batch.damaged)
            yield batch

    def fingerprint(self) -> list[int]:
        """The number of images, and checksums of names, of encoded sizes, of some images' bytes, and of labels."""
        names = contents = 0
        for index in self.chosen:
            names = zlib.crc32(self.source.name(index).encode(errors="surrogateescape"), names)
        places = np.linspace(0, len(self) - 1, min(WITNESSES, len(self))).astype(int)
        for encoded in self.source.read(self.chosen[places]):
            contents = zlib.crc32(content(encoded), contents)
        some = self.chosen[np.linspace(0, len(self) - 1, min(MOST_SIZES, len(self))).astype(int)]
        sizes = checksum(self.source.sizes(some) if self.source.sizes else None)
        return [len(self), names, sizes, contents, checksum(self.source.labels[self.chosen])]


class _Decoded(Dataset[Any]):
    """Whole batches at a time, so that a parquet file's block is read once for all of its images in the batch."""

    count = 1
    """Views of an image."""
    size: int | None = None
    """Side that images are brought to before anything else."""
    fills = False
    """Whether others are read in the place of damaged ones."""

    def __init__(self, files: ImageFiles) -> None:
        self.files = files

    def __getitem__(self, item: tuple[int, list[int]]) -> Read | UserError:
        epoch, indices = item[0], list(item[1])
        try:
            made, damaged = self.read(epoch, indices)
            for position in range(len(indices)) if self.fills else ():
                if position not in made:
                    self.fill(epoch, indices, position, made, damaged)
        except UserError as error:  # raised in a worker it would come with a traceback
            return error
        good = sorted(made)
        views = [torch.stack([made[position][view] for position in good]) for view in range(self.count)] if good else []
        return views, [indices[position] for position in good], damaged

    def read(self, epoch: int, indices: list[int]) -> tuple[dict[int, list[Tensor]], list[str]]:
        """The views of good images by their position, and the damaged ones."""
        by_place = sorted(range(len(indices)), key=lambda position: indices[position])
        chosen = self.files.chosen[[indices[position] for position in by_place]]
        made: dict[int, list[Tensor]] = {}
        damaged = []
        for position, index, encoded in zip(by_place, chosen, self.files.source.read(chosen), strict=True):
            pixels = attempt(encoded, self.size)
            if isinstance(pixels, Damaged):
                damaged.append(f"{self.files.source.name(index)}: {pixels}")
            else:
                made[position] = self.views_of(pixels, epoch, int(index))
        return made, damaged

    def fill(
        self, epoch: int, indices: list[int], position: int, made: dict[int, list[Tensor]], damaged: list[str]
    ) -> None:
        """Put another image into the place of a damaged one."""
        for other in stand_ins(indices[position], len(self.files)):
            instead, more = self.read(epoch, [other])
            damaged += [name for name in more if name not in damaged]
            if instead:
                indices[position], made[position] = other, instead[0]
                return

    def views_of(self, pixels: np.ndarray, epoch: int, index: int) -> list[Tensor]:
        raise NotImplementedError


class _AtSize(_Decoded):
    """Images as they are, at a size."""

    def __init__(self, files: ImageFiles, size: int) -> None:
        super().__init__(files)
        self.size = size

    def views_of(self, pixels: np.ndarray, *_: int) -> list[Tensor]:
        return [torch.from_numpy(pixels.transpose(2, 0, 1).copy())]


class _RandomViews(_Decoded):
    fills = True

    def __init__(self, files: ImageFiles, views: Views, seed: int, count: int) -> None:
        super().__init__(files)
        self.transforms = [random_view(views), *[random_view(views.second)] * (count - 1)]
        self.seed, self.count = seed, count

    def views_of(self, pixels: np.ndarray, epoch: int, index: int) -> list[Tensor]:
        image = torch.from_numpy(pixels.transpose(2, 0, 1).copy())
        with torch.random.fork_rng(devices=[]):  # torchvision draws from the global generator
            torch.default_generator.manual_seed(seed_from(self.seed, epoch, index))
            return [transform(image) for transform in self.transforms]


def random_view(views: Views) -> Any:
    """torchvision's transforms for one random view: the same as `us3l.data.views` makes by the batch."""
    from torchvision.transforms import v2

    side = 2 * blur_radius(views.size) + 1
    jitter = v2.ColorJitter(views.brightness, views.contrast, views.saturation, views.hue)
    return v2.Compose(
        [
            v2.RandomResizedCrop(views.size, scale=views.crop_scale, ratio=ASPECT, antialias=True),
            v2.RandomHorizontalFlip(views.flip),
            v2.RandomApply([jitter], views.jitter),
            v2.RandomGrayscale(views.grey),
            v2.RandomApply([v2.GaussianBlur(side, BLUR_SIGMA)], views.blur),
            *([v2.RandomSolarize(128, views.solarise)] if views.solarise else []),  # it would draw even if never done
        ]
    )


def _batches(
    files: ImageFiles,
    dataset: _Decoded,
    items: Sequence[tuple[int, list[int]]],
    to_float: Callable[[Tensor], Tensor],
    workers: int | None,
    pinned: bool = False,
) -> Iterator[Batch]:
    """A batch for each item, even if none of its images can be read."""
    labels = files.labels
    for views, indices, damaged in _read(dataset, items, default_workers() if workers is None else workers, pinned):
        kept = torch.tensor(indices, dtype=torch.int64)
        # Bytes come from the workers, and become floats only where they are needed: a quarter of the traffic.
        yield Batch(tuple(map(to_float, views)), kept, None if labels is None else labels[kept], damaged)


def _without_empty(batches: Iterator[Batch], name: str) -> Iterator[Batch]:
    """The batches in which there is an image; one of them tells of those in which there is none."""
    held: Batch | None = None
    damaged: list[str] = []
    for batch in batches:
        damaged += batch.damaged
        if len(batch):
            if held:
                yield held
            held, damaged = replace(batch, damaged=damaged), []
    if held is None:
        raise _unreadable(name, damaged)
    yield replace(held, damaged=[*held.damaged, *damaged])


def _unreadable(name: str, damaged: Sequence[str]) -> UserError:
    return UserError(f"{name}: none of {len(damaged)} images can be read; the first is {damaged[0]}")


def _read(dataset: _Decoded, items: Sequence[tuple[int, list[int]]], workers: int, pinned: bool) -> Iterator[Read]:
    loader = DataLoader(
        dataset,
        batch_size=None,
        sampler=items,  # an item is a whole batch
        num_workers=workers,
        worker_init_fn=_start_worker,
        generator=torch.Generator(),  # else it would draw from the global one
        pin_memory=pinned,
    )
    with left_alone():
        reading = iter(loader)
    try:
        for found in reading:
            if isinstance(found, UserError):
                raise found
            yield found
    except RuntimeError as error:
        if "DataLoader worker" in str(error) and "exited unexpectedly" in str(error):
            raise UserError(
                f"one of {workers} processes that read images was killed, most likely because memory ran out; "
                f"fewer of them need less: set the environment variable {WORKERS_VARIABLE} to {max(1, workers // 2)}"
            ) from None
        raise


@contextmanager
def left_alone() -> Iterator[None]:
    """Processes started inside are deaf to requests to stop: this one ends them, when it has saved its work.

    Such a request often goes to all processes of a group (Ctrl-C, `timeout`, systemd). Nor does the death of one of
    them interrupt this process anywhere; it shows when it is read from.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "sigwaitinfo"):
        yield
        return
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    on_death = signal.getsignal(signal.SIGCHLD)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, on_death)  # torch has set its own, which raises
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def default_workers() -> int:
    """The number of decoding processes: US3L_WORKERS, else this process's share of the cores that it may use."""
    text = os.environ.get(WORKERS_VARIABLE)
    if text is None:
        return max(1, _cores() // _local_processes())
    if not text.isdecimal():
        raise UserError(f"{WORKERS_VARIABLE} must be a number of processes, 0 for none, not {text!r}")
    return int(text)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _local_processes() -> int:
    """Processes of the run on this machine: torchrun tells; without it all are here."""
    told = os.environ.get("LOCAL_WORLD_SIZE", "")
    if told.isdecimal():
        return max(1, int(told))
    distributed = torch.distributed
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def _start_worker(_: int) -> None:
    torch.set_num_threads(1)
    # What the parent process left for its garbage collector must not be finalised here: loaders would end the workers
    # of the parent, and inference engines wait for threads that no fork has.
    gc.freeze()
    if hasattr(signal, "sigwaitinfo"):
        threading.Thread(target=_end_for_parent, daemon=True).start()


def _end_for_parent() -> None:
    """End this process when its parent asks for it, and for nobody else."""
    parent = os.getppid()
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(0)
