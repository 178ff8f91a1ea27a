"""A set of images, as one uint8 tensor or still to be decoded: by name, from a folder, or from parquet files."""

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from us3l.data.catalogue import Catalogue
from us3l.data.decode import Damaged, Encoded, decode
from us3l.data.named import NAMED_SETS, open_named
from us3l.data.opening import Progress, open_path
from us3l.data.order import block_order
from us3l.errors import UserError, did_you_mean

Split = Literal["train", "test", "all", "pretrain"]

TEST_SHARE = 0.2
SEED = 0  # of splits and subsets: part of what a data set is, never of an experiment
DECODED_AT_ONCE = 256


@dataclass
class ImageSet:
    """Square images of one size, and what is known about them."""

    name: str
    images: Tensor
    """N x 3 x S x S, uint8."""
    labels: Tensor | None = None
    """N, int64."""
    classes: list[str] | None = None
    """A name for each label; None exactly when there are no labels."""
    skipped: list[str] = field(default_factory=list)
    """Damaged images that were left out, each with the reason."""
    places: Tensor | None = None
    """N, int64: where each image is among all, the damaged ones counted; None if there were none."""

    def __len__(self) -> int:
        return len(self.images)

    def subset(self, indices: Tensor) -> "ImageSet":
        """The images at these indices, in this order."""
        labels = None if self.labels is None else self.labels[indices]
        return replace(self, images=self.images[indices], labels=labels, places=None)


@dataclass(frozen=True)
class ImageFiles:
    """Images of any sizes that are still to be decoded, and what is known about them."""

    name: str
    source: Catalogue
    chosen: np.ndarray
    """Rising indices into the source."""

    def __len__(self) -> int:
        return len(self.chosen)

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

    def order(self, generator: torch.Generator) -> Tensor:
        """All of 0 to N - 1 in a random order; where the source lies in blocks, one that is fast to read."""
        blocks = self.source.blocks
        return (
            torch.randperm(len(self), generator=generator)
            if blocks is None
            else block_order(blocks, self.chosen, generator)
        )

    def subset(self, indices: Tensor) -> "ImageFiles":
        """The images at these rising indices."""
        return replace(self, chosen=self.chosen[indices.numpy()])


def load(
    data: str | Path,
    split: Split = "train",
    size: int | None = None,
    limit: int | None = None,
    progress: Progress | None = None,
    root: str | Path | None = None,
) -> ImageSet:
    """Load a set of images by its name, or a folder of images or parquet files by its path.

    Where the source has a training and a test part (`train/` and `test/` or `val/`; `train*.parquet` and
    `test*.parquet` or `validation*.parquet`), they are the splits, and "all" is the training part.
    Otherwise there is one pool, "all" is all of it, and a fixed fifth of each class is the test split.
    "pretrain" is the training split, but all of a pool without labels, which needs no test split.
    In folders, images are labelled by the sub-folder they are in, if every one is in a sub-folder.

    Args:
        data: `"digits"`, a name of `NAMED_SETS`, or a path; a string that is a known name means that set.
        split: which part to load.
        size: side to bring the images to (shorter side resized, centre cropped); None if they all are squares of one
            size already.
        limit: load no more than this many images, a fixed random choice with equally many of each class.
        progress: called with the number of images decoded so far, and of all.
        root: where named sets lie (default: the environment's US3L_DATA, else ./data).
    """
    if data == "digits":
        _check(size=size, limit=limit)
        return _digits(split, size, limit)
    return decode_all(find(data, split, limit, root), size, progress)


def find(
    data: str | Path,
    split: Split = "train",
    limit: int | None = None,
    root: str | Path | None = None,
    progress: Progress | None = None,
) -> ImageFiles:
    """The images that `load` would decode; `progress` is called with the number of shards read, and of all."""
    _check(limit=limit)
    if data in NAMED_SETS:
        name, source = str(data), open_named(str(data), root)
    else:
        path = _existing_path(data)
        name, source = path.resolve().name, open_path(path, progress)
    if split == "pretrain":
        split = "all" if (source.labels < 0).any() else "train"
    chosen = _choose(source.labels, source.in_test, split, limit)
    if not len(chosen):
        raise UserError(f"{data}: no images in the {split} split; there are {len(source)} in all")
    return ImageFiles(name, source, chosen)


def decode_all(files: ImageFiles, size: int | None = None, progress: Progress | None = None) -> ImageSet:
    """The images in memory, without the damaged ones."""
    _check(size=size)
    images, kept, skipped = _decode_all(files, size, progress)
    places = torch.from_numpy(kept)
    good = files.subset(places)
    return ImageSet(files.name, images, good.labels, good.classes, skipped, places if skipped else None)


def _check(**values: int | None) -> None:
    for name, value in values.items():
        if value is not None and value < 1:
            raise UserError(f"{name} must be at least 1, not {value}")


def _existing_path(data: str | Path) -> Path:
    path = Path(data).expanduser()
    if path.exists():
        return path
    if len(path.parts) > 1 or path.suffix:
        raise UserError(f"{path}: no such file or folder")
    hint = did_you_mean(data, ("digits", *NAMED_SETS))
    raise UserError(f"{data}: no such folder, and no data set of that name; {hint}")


def _digits(split: Split, size: int | None, limit: int | None) -> ImageSet:
    from sklearn.datasets import load_digits

    digits = load_digits()
    labels = digits.target.astype(np.int64)
    indices = _choose(labels, None, split, limit)
    grey = torch.from_numpy(digits.images[indices] * (255 / 16)).float().unsqueeze(1)  # values are 0 to 16
    if size not in (None, grey.shape[-1]):
        grey = F.interpolate(grey, (size, size), mode="bilinear", antialias=True)
    images = grey.round().to(torch.uint8).repeat(1, 3, 1, 1)
    return ImageSet("digits", images, torch.from_numpy(labels[indices]), [str(name) for name in digits.target_names])


def _choose(labels: np.ndarray, in_test: np.ndarray | None, split: Split, limit: int | None) -> np.ndarray:
    """Rising indices of the images of a split, no more than `limit`."""
    generator = np.random.default_rng(SEED)
    if in_test is None:
        ranks, counts = _ranks(labels, generator)
        share = np.maximum(np.round(TEST_SHARE * counts), counts > 1)
        in_test = np.zeros(len(labels), bool) if split == "all" else ranks < share
    indices = np.flatnonzero(in_test if split == "test" else ~in_test)
    if limit is None or limit >= len(indices):
        return indices
    ranks, _ = _ranks(labels[indices], generator)
    by_rank = np.lexsort([generator.random(len(indices)), ranks])  # one of each class, then another of each
    return np.sort(indices[by_rank[:limit]])


def _ranks(labels: np.ndarray, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """For each image its place in a random order of its class, and the size of its class."""
    _, group, counts = np.unique(labels, return_inverse=True, return_counts=True)
    shuffled = generator.permutation(len(labels))
    by_group = shuffled[np.argsort(group[shuffled], kind="stable")]
    ranks = np.empty(len(labels), int)
    ranks[by_group] = np.arange(len(labels)) - (np.cumsum(counts) - counts)[group[by_group]]
    return ranks, counts[group]


def _decode_all(files: ImageFiles, size: int | None, progress: Progress | None) -> tuple[Tensor, np.ndarray, list[str]]:
    """The images as one tensor, the positions of those that were good, and the names of the others."""
    images: np.ndarray | None = None
    kept: list[int] = []
    skipped: list[str] = []
    encoded = files.source.read(files.chosen)
    for position, pixels in enumerate(_decoded(encoded, size)):
        name = files.source.name(files.chosen[position])
        if isinstance(pixels, Damaged):
            skipped.append(f"{name}: {pixels}")
        else:
            height, width, _ = pixels.shape
            if images is None:
                _check_memory(len(files) * pixels.nbytes, files.name)
                images = np.empty((len(files), 3, height, width), np.uint8)
            if height != width or images.shape[-1] != width:
                raise UserError(
                    f"{files.name}: images are not squares of one size ({name}: {width}x{height}); give a size"
                )
            images[len(kept)] = pixels.transpose(2, 0, 1)
            kept.append(position)
        done = position + 1
        if progress and (done % DECODED_AT_ONCE == 0 or done == len(files)):
            progress(done, len(files))
    if images is None:
        raise UserError(f"{files.name}: none of the {len(files)} images can be read; the first is {skipped[0]}")
    return torch.from_numpy(images[: len(kept)]), np.array(kept), skipped


def _decoded(encoded: Iterable[Encoded], size: int | None) -> Iterator[np.ndarray | Damaged]:
    """Pixels in the order given, decoded by all cores; only a few images are held at a time."""
    encoded = iter(encoded)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        while some := list(islice(encoded, DECODED_AT_ONCE)):
            yield from pool.map(lambda one: attempt(one, size), some)


def attempt(encoded: Encoded, size: int | None) -> np.ndarray | Damaged:
    """The pixels of an image, or why there are none."""
    try:
        return decode(encoded, size)
    except Damaged as error:
        return error


def fits_memory(needed: int, bound: int | None = None) -> bool:
    """Whether so many bytes are within the bound, and within half of the memory available."""
    available = _available_memory()
    return (bound is None or needed <= bound) and (available is None or needed <= available / 2)


def _check_memory(needed: int, name: str) -> None:
    if not fits_memory(needed):
        raise UserError(
            f"{name}: the images need {needed / 2**30:.1f} GiB, more than half of the "
            f"{(_available_memory() or 0) / 2**30:.1f} GiB of memory available; lower the size, limit the number of "
            "images, or read them as they are needed (--stream)"
        )


def _available_memory() -> int | None:
    """Bytes of physical memory to be had, if the system tells."""
    try:
        meminfo = Path("/proc/meminfo").read_text()
        return 1024 * int(meminfo.split("MemAvailable:")[1].split()[0])
    except (OSError, IndexError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None
