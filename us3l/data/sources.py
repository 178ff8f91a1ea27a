"""A set of images as one uint8 tensor: from scikit-learn's digits, a folder, or parquet files."""

import difflib
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from us3l.data.catalogue import Catalogue, catalogue
from us3l.data.decode import Damaged, Encoded, decode
from us3l.errors import UserError

Split = Literal["train", "test", "all", "pretrain"]
Progress = Callable[[int, int], None]

BUILT_IN = ("digits",)
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

    def __len__(self) -> int:
        return len(self.images)

    def subset(self, indices: Tensor) -> "ImageSet":
        """The images at these indices, in this order."""
        labels = None if self.labels is None else self.labels[indices]
        return replace(self, images=self.images[indices], labels=labels)


def load(
    data: str | Path,
    split: Split = "train",
    size: int | None = None,
    limit: int | None = None,
    progress: Progress | None = None,
) -> ImageSet:
    """Load a built-in set by its name, or a folder of images or parquet files by its path.

    Where the source has a training and a test part (`train/` and `test/` or `val/`; `train*.parquet` and
    `test*.parquet` or `validation*.parquet`), they are the splits, and "all" is the training part.
    Otherwise there is one pool, "all" is all of it, and a fixed fifth of each class is the test split.
    "pretrain" is the training split, but all of a pool without labels, which needs no test split.
    In folders, images are labelled by the sub-folder they are in, if every one is in a sub-folder.

    Args:
        data: `"digits"`, or a path; a string that is a built-in name means the built-in set.
        split: which part to load.
        size: side to bring the images to (shorter side resized, centre cropped); None if they all are squares of one
            size already.
        limit: load no more than this many images, a fixed random choice with equally many of each class.
        progress: called with the number of images decoded so far, and of all.
    """
    for name, value in (("size", size), ("limit", limit)):
        if value is not None and value < 1:
            raise UserError(f"{name} must be at least 1, not {value}")
    if data == "digits":
        return _digits(split, size, limit)

    path = _existing_path(data)
    source = catalogue(path)
    if split == "pretrain":
        split = "all" if (source.labels < 0).any() else "train"
    indices = _choose(source.labels, source.in_test, split, limit)
    if not len(indices):
        raise UserError(f"{path}: no images in the {split} split; there are {len(source)} in all")
    images, kept, skipped = _decode_all(source, indices, size, progress, path)
    labels = source.labels[indices[kept]]
    labelled = bool((labels >= 0).all())
    return ImageSet(
        name=path.resolve().name,
        images=images,
        labels=torch.from_numpy(labels) if labelled else None,
        classes=source.classes if labelled else None,
        skipped=skipped,
    )


def _existing_path(data: str | Path) -> Path:
    path = Path(data).expanduser()
    if path.exists():
        return path
    if len(path.parts) > 1 or path.suffix:
        raise UserError(f"{path}: no such file or folder")
    close = difflib.get_close_matches(str(data), BUILT_IN, n=1)
    hint = f"did you mean '{close[0]}'?" if close else f"built-in sets are: {', '.join(BUILT_IN)}"
    raise UserError(f"{data}: no such folder, and no built-in data set of that name; {hint}")


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


def _decode_all(
    source: Catalogue, indices: np.ndarray, size: int | None, progress: Progress | None, path: Path
) -> tuple[Tensor, np.ndarray, list[str]]:
    """The images as one tensor, the positions in `indices` of those that were good, and the names of the others."""
    images: np.ndarray | None = None
    kept: list[int] = []
    skipped: list[str] = []
    for position, pixels in enumerate(_decoded(source.read(indices), size)):
        if isinstance(pixels, Damaged):
            skipped.append(f"{source.name(indices[position])}: {pixels}")
        else:
            height, width, _ = pixels.shape
            if images is None:
                _check_memory(len(indices) * pixels.nbytes, path)
                images = np.empty((len(indices), 3, height, width), np.uint8)
            if height != width or images.shape[-1] != width:
                name = source.name(indices[position])
                raise UserError(f"{path}: images are not squares of one size ({name}: {width}x{height}); give a size")
            images[len(kept)] = pixels.transpose(2, 0, 1)
            kept.append(position)
        done = position + 1
        if progress and (done % DECODED_AT_ONCE == 0 or done == len(indices)):
            progress(done, len(indices))
    if images is None:
        raise UserError(f"{path}: none of the {len(indices)} images can be read; the first is {skipped[0]}")
    return torch.from_numpy(images[: len(kept)]), np.array(kept), skipped


def _decoded(encoded: Iterable[Encoded], size: int | None) -> Iterator[np.ndarray | Damaged]:
    """Pixels in the order given, decoded by all cores; only a few images are held at a time."""

    def attempt(one: Encoded) -> np.ndarray | Damaged:
        try:
            return decode(one, size)
        except Damaged as error:
            return error

    encoded = iter(encoded)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        while some := list(islice(encoded, DECODED_AT_ONCE)):
            yield from pool.map(attempt, some)


def _check_memory(needed: int, path: Path) -> None:
    available = _available_memory()
    if available is not None and needed > available / 2:
        raise UserError(
            f"{path}: the images need {needed / 2**30:.1f} GiB, more than half of the {available / 2**30:.1f} GiB of "
            "memory available; lower the size, or limit the number of images"
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
