"""Images read as they are needed, by worker processes: for sets that do not fit into memory as one tensor.

What an image looks like depends on (seed, epoch, the image) alone, never on the workers. A run that goes on in the
middle of an epoch asks for the batches that are left, and gets the same views as if it had never stopped:

>>> from us3l.data.sources import find
>>> def rest_of_epoch(data, epoch, first):
...     files = find(data, "pretrain")
...     order = files.order(torch.Generator().manual_seed(epoch))
...     for batch in views_loader(files, Views(size=224), order.split(256)[first:], seed=0, epoch=epoch):
...         view1, view2 = batch.views
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from us3l.data.decode import Damaged
from us3l.data.preprocessing import Preprocessing
from us3l.data.sources import ImageFiles, attempt
from us3l.data.spec import Views
from us3l.data.views import ASPECT, BLUR_SIGMA, blur_radius, normalise
from us3l.errors import UserError
from us3l.seeds import seed_from


@dataclass(frozen=True)
class Batch:
    """Some images of a set, the damaged ones left out."""

    views: tuple[Tensor, ...]
    """Each N x 3 x S x S, float32, normalised."""
    indices: Tensor
    """N, int64: which images of the set they are."""
    labels: Tensor | None = None
    damaged: Sequence[str] = ()
    """The images that were left out, each with the reason."""

    def __len__(self) -> int:
        return len(self.indices)


def evaluation_loader(
    files: ImageFiles, preprocessing: Preprocessing, batch_size: int = 250, workers: int | None = None
) -> Iterator[Batch]:
    """Every image once, in order, as a network sees it."""
    batches = torch.arange(len(files)).split(batch_size)
    return _batches(files, _Decoded(files, preprocessing.resize), batches, workers, preprocessing.apply)


def views_loader(
    files: ImageFiles,
    views: Views,
    batches: Sequence[Tensor],
    seed: int,
    epoch: int,
    count: int = 2,
    workers: int | None = None,
) -> Iterator[Batch]:
    """`count` independent random views of each image, for batches of indices into the set.

    The transforms are torchvision's. A batch with damaged images is smaller; one of nothing else is a `UserError`.
    `workers` is the number of decoding processes (default: US3L_WORKERS, else one a core; 0: in this process).
    """
    dataset = _RandomViews(files, views, seed, epoch, count)
    return _batches(files, dataset, batches, workers, lambda view: normalise(view.float().div_(255)))


class _Decoded(Dataset[Any]):
    """Whole batches at a time, so that a parquet file's block is read once for all of its images in the batch."""

    count = 1

    def __init__(self, files: ImageFiles, size: int | None) -> None:
        self.files, self.size = files, size

    def __getitem__(self, indices: list[int]) -> tuple[list[Tensor], list[int], list[str]]:
        """The views (uint8), the indices of the good images in the order asked for, and the names of the others."""
        by_place = sorted(range(len(indices)), key=lambda position: indices[position])
        chosen = self.files.chosen[[indices[position] for position in by_place]]
        made: dict[int, list[Tensor]] = {}
        damaged = []
        for position, index, encoded in zip(by_place, chosen, self.files.source.read(chosen), strict=True):
            pixels = attempt(encoded, self.size)
            if isinstance(pixels, Damaged):
                damaged.append(f"{self.files.source.name(index)}: {pixels}")
            else:
                made[position] = self.views_of(pixels, int(index))
        good = sorted(made)
        views = [torch.stack([made[position][view] for position in good]) for view in range(self.count)] if good else []
        return views, [indices[position] for position in good], damaged

    def views_of(self, pixels: np.ndarray, _: int) -> list[Tensor]:
        return [torch.from_numpy(pixels.transpose(2, 0, 1).copy())]


class _RandomViews(_Decoded):
    def __init__(self, files: ImageFiles, views: Views, seed: int, epoch: int, count: int) -> None:
        super().__init__(files, None)
        self.transforms = [random_view(views), *[random_view(views.second)] * (count - 1)]
        self.seed, self.epoch, self.count = seed, epoch, count

    def views_of(self, pixels: np.ndarray, index: int) -> list[Tensor]:
        image = torch.from_numpy(pixels.transpose(2, 0, 1).copy())
        with torch.random.fork_rng(devices=[]):  # torchvision draws from the global generator
            torch.default_generator.manual_seed(seed_from(self.seed, self.epoch, index))
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
    batches: Sequence[Tensor],
    workers: int | None,
    to_float: Callable[[Tensor], Tensor],
) -> Iterator[Batch]:
    labels = files.labels
    workers = default_workers() if workers is None else workers
    loader = DataLoader(
        dataset,
        batch_size=None,
        sampler=map(Tensor.tolist, batches),  # an item is a whole batch
        num_workers=workers,
        worker_init_fn=_start_worker,
        generator=torch.Generator(),  # else it would draw from the global one
    )
    for views, indices, damaged in loader:
        if not indices:
            raise UserError(f"{files.name}: none of {len(damaged)} images can be read; the first is {damaged[0]}")
        kept = torch.tensor(indices)
        # Bytes come from the workers, and become floats here: a quarter of the traffic.
        yield Batch(tuple(map(to_float, views)), kept, None if labels is None else labels[kept], damaged)


def default_workers() -> int:
    """The number of decoding processes: US3L_WORKERS, else one a core."""
    text = os.environ.get("US3L_WORKERS")
    if text is None:
        return os.cpu_count() or 1
    if not text.isdecimal():
        raise UserError(f"US3L_WORKERS must be a number of processes, 0 for none, not {text!r}")
    return int(text)


def _start_worker(_: int) -> None:
    torch.set_num_threads(1)
    # What the parent process left for its garbage collector must not be finalised here: loaders would end the workers
    # of the parent, and inference engines wait for threads that no fork has.
    gc.freeze()
