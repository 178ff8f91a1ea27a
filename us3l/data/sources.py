"""A set of images by name, from a path, or from what a Python program has; in memory, or still to be decoded."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from us3l.data.cached import are_small, keep_all, kept_bytes
from us3l.data.catalogue import Catalogue
from us3l.data.datasets import NAMED_SETS, open_named
from us3l.data.given import of_dataset, of_files, of_tensor
from us3l.data.images import ImageSet as ImageSet
from us3l.data.in_memory import decode_all
from us3l.data.opening import open_path
from us3l.data.streamed import ImageFiles as ImageFiles
from us3l.data.view_settings import Views
from us3l.system.errors import UserError, alike, did_you_mean
from us3l.system.files import expanded
from us3l.system.progress import SILENT, Progress

Keep = Literal["crops", "views"]
Split = Literal["train", "test", "all", "pretrain", "every", "learn", "validation"]
Data = str | Path | Tensor | Sequence[str | Path] | Dataset | ImageSet | ImageFiles
"""What a person calls images: a known name, a path (see docs/data.md), pixels (uint8, N x 3 x H x W), a list of image
files, a torch data set of images or of (image, label), or a set that is already open."""

TEST_SHARE = 0.2
VALIDATION_SHARE = 0.1
SEED = 0  # of splits and subsets: part of what a data set is, never of an experiment
TRAINING_MEMORY = 2**33  # bytes; a fixed bound, not the memory at hand, as a run must resume as it began
TOLD = 5  # images to name of those that are left out


def open_images(
    data: Data,
    split: Split = "train",
    size: int | None = None,
    *,
    limit: int | None = None,
    root: str | Path | None = None,
    stream: bool = False,
    memory: int | None = None,
    exact: bool = False,
    progress: Progress = SILENT,
) -> ImageSet | ImageFiles:
    """Images in memory, or read as they are needed.

    Where the source has a training and a test part (`train/` and `test/` or `val/`; `train*.parquet` and
    `test*.parquet` or `validation*.parquet`), they are the splits, and "all" is the training part.
    Otherwise there is one pool, "all" is all of it, and a fixed fifth of each class is the test split.
    "pretrain" is the training split, but all of a pool without labels, which needs no test split.
    "every" is every image there is, of all splits.
    "validation" is a fixed tenth of each class of "pretrain", and "learn" is the rest of it.
    In folders, images are labelled by the sub-folder they are in, if every one is in a sub-folder.

    Args:
        data: See `Data`; a string that is a known name means that set.
        split: Which part of it.
        size: Side to bring images in memory to (shorter side resized, centre cropped); None if they all are squares
            of one size already.
        limit: No more than this many images, a fixed random choice with the same number of each class.
        root: Where named sets lie (default: the environment's US3L_DATA, else ./data).
        stream: Read the images as they are needed, however few they are.
        memory: Also read them as needed if they take more bytes than this.
        exact: Resize images in memory as `us3l.data.decode.decode` does, to the bit, which is slower.
        progress: Told what is worth saying, and how far it is.

    Returns:
        An `ImageSet` in memory, or `ImageFiles` that are read as they are needed. Both have the same methods.
    """
    if isinstance(data, ImageSet):
        return _part(data, split, limit)
    files = find(data, split, limit, root, progress)
    if stream or (memory is not None and size is not None and files.nbytes(size) > memory):
        progress.say(f"{files.name}: {len(files):,} images, read as they are needed")
        return files
    return _decoded(files, size, progress, exact)


def open_for_training(
    data: Data,
    views: Views,
    *,
    split: Split = "pretrain",
    limit: int | None = None,
    stream: bool = False,
    memory: int = TRAINING_MEMORY,
    keep: Keep = "crops",
    progress: Progress = SILENT,
) -> ImageSet | ImageFiles:
    """Images to make random views of.

    Squares of one size that are no larger than a view are one tensor. Others are kept as large as their crops need
    them, if they take no more memory than allowed; else they are read as they are needed. What is chosen depends on the
    images and on these settings alone, so that a run resumes as it began.

    Args:
        data: See `open_images`.
        views: How views are made: the largest size and the smallest crop.
        split: Which part of it; "learn" holds the validation images out.
        limit: No more than this many images.
        stream: Read the images as they are needed, however few they are.
        memory: Bytes that decoded images may take.
        keep: "views" keeps centre squares of the size of views, as runs did until version 1.0.
        progress: Told what is worth saying, and how far it is.
    """
    if isinstance(data, ImageSet) or keep == "views":
        return open_images(
            data, split, views.size, limit=limit, stream=stream, memory=memory, exact=True, progress=progress
        )
    files = find(data, split, limit, None, progress)
    shapes = [] if stream else files.shapes()
    if stream or kept_bytes(shapes, len(files), views) > memory:
        progress.say(f"{files.name}: {len(files):,} images, read as they are needed")
        return files
    if are_small(shapes, views):
        return _decoded(files, views.size, progress, exact=True)
    with progress.counting(f"loading {files.name}") as counting:
        images = keep_all(files, views, counting.so_far)
    tell_damaged(progress, images.name, images.skipped)
    return images


def load(
    data: Data,
    split: Split = "train",
    size: int | None = None,
    limit: int | None = None,
    progress: Progress = SILENT,
    root: str | Path | None = None,
) -> ImageSet:
    """Images in memory.

    Args:
        data: See `open_images`, as for the others.
        split: Which part of it.
        size: Side to bring them to.
        limit: No more than this many images.
        progress: Told what is worth saying, and how far it is.
        root: Where named sets lie.

    Returns:
        The images as one tensor, with labels if there are any.
    """
    if isinstance(data, ImageSet):
        return _part(data, split, limit)
    return _decoded(find(data, split, limit, root, progress), size, progress)


def find(
    data: str | Path | Tensor | Sequence[str | Path] | Dataset | ImageFiles,
    split: Split = "train",
    limit: int | None = None,
    root: str | Path | None = None,
    progress: Progress = SILENT,
) -> ImageFiles:
    """The images that `load` would decode.

    Args:
        data: See `open_images`, as for the others.
        split: Which part of it.
        limit: No more than this many images.
        root: Where named sets lie.
        progress: Told what is worth saying, and how far it is.

    Returns:
        Names, labels and split; nothing is decoded yet.
    """
    files = _found(data, split, limit, root, progress)
    name, source = files.name, files.source
    if source.left_out:
        progress.say(f"{name}: left out {source.left_out}", style="yellow")
    if split == "pretrain" and source.in_test is None and len(files) < len(source) and limit is None:
        progress.say(
            f"{name}: {len(source) - len(files):,} of {len(source):,} images, a fifth of each class, are held out "
            "for evaluation"
        )
    if split == "learn":
        progress.say(f"{name}: a tenth of each class of the training images is held out as validation images")
    return files


def peek(data: Data, limit: int | None = None, progress: Progress = SILENT) -> ImageSet | ImageFiles:
    """The images that `open_for_training` would open, without a word about them.

    Args:
        data: See `open_images`.
        limit: No more than this many images.
        progress: Told how far it is, where looking takes long.
    """
    if isinstance(data, ImageSet):
        return _part(data, "pretrain", limit)
    return _found(data, "pretrain", limit, None, progress)


def _found(data: object, split: Split, limit: int | None, root: str | Path | None, progress: Progress) -> ImageFiles:
    name, source = _open(data, root, progress)
    chosen = _choose(source.labels, source.in_test, split, limit)
    if not len(chosen):
        raise UserError(f"{name}: no images in the {split} split; there are {len(source)} in all")
    return ImageFiles(name, source, chosen)


def _open(data: object, root: str | Path | None, progress: Progress) -> tuple[str, Catalogue]:
    """A name for the data, and what there is of it."""
    if isinstance(data, ImageFiles):
        chosen = data.chosen
        return data.name, data.source.subset(chosen)
    if isinstance(data, Tensor):
        return "images", of_tensor(data)
    if isinstance(data, list | tuple):
        return "files", of_files(data)
    if isinstance(data, str | Path):
        if data in NAMED_SETS:
            return str(data), open_named(str(data), root)
        path = _existing_path(data)
        with progress.counting(f"looking through the shards of {data}") as counting:
            return path.resolve().name, open_path(path, counting.so_far)
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        with progress.counting("looking up labels") as counting:
            return type(data).__name__, of_dataset(data, counting.so_far)
    raise UserError(
        f"{type(data).__name__} cannot be read as images; give a name, a path, pixels (uint8, N x 3 x H x W), a list "
        "of image files, or a torch data set with a length"
    )


def _decoded(files: ImageFiles, size: int | None, progress: Progress, exact: bool = False) -> ImageSet:
    with progress.counting(f"loading {files.name}") as counting:
        images = decode_all(files, size, counting.so_far, exact)
    tell_damaged(progress, images.name, images.skipped)
    return images


def _part(images: ImageSet, split: Split, limit: int | None) -> ImageSet:
    labels = np.full(len(images), -1) if images.labels is None else images.labels.cpu().numpy()
    chosen = _choose(labels, None, split, limit)
    return images if len(chosen) == len(images) else images.subset(torch.from_numpy(chosen))


def tell_damaged(progress: Progress, name: str, damaged: Sequence[str]) -> None:
    """Say which images were left out."""
    tell_skipped(progress, f"damaged images of {name}", damaged)


def tell_skipped(progress: Progress, what: str, lines: Sequence[str]) -> None:
    """Say how many of what were left out, and name the first, each by a line."""
    if lines:
        progress.say(f"skipped {len(lines)} {what}:", style="yellow")
        for line in lines[:TOLD]:
            progress.say(f"  {line}")
        if len(lines) > TOLD:
            progress.say(f"  and {len(lines) - TOLD} more")


def _existing_path(data: str | Path) -> Path:
    path = expanded(data)
    if os.path.exists(path):
        return path
    near = [str(path.with_name(name)) for name in alike(path.name, _beside(path))]
    may_be_name = len(path.parts) == 1 and not path.suffix
    if near:  # what is at hand is meant more often than a data set of a similar name
        near += alike(data, NAMED_SETS) if may_be_name else []
        raise UserError(f"{data}: no such file or folder; did you mean {' or '.join(map(repr, near))}?")
    if may_be_name:
        raise UserError(f"{data}: no such folder, and no data set of that name; {did_you_mean(data, NAMED_SETS)}")
    raise UserError(f"{data}: no such file or folder")


def _beside(path: Path) -> list[str]:
    try:
        return [name for name in os.listdir(path.parent) if not name.startswith(".")]
    except (OSError, ValueError):  # a zero byte
        return []


def _choose(labels: np.ndarray, in_test: np.ndarray | None, split: Split, limit: int | None) -> np.ndarray:
    """Rising indices of the images of a split, no more than `limit`."""
    if limit is not None and limit < 1:
        raise UserError(f"limit must be at least 1, not {limit}")
    part = split
    if part in ("pretrain", "learn", "validation"):
        split = "all" if (labels < 0).any() else "train"
    generator = np.random.default_rng(SEED)
    if split == "every":
        in_test = np.zeros(len(labels), bool)
    if in_test is None:
        in_test = _held_out(labels, TEST_SHARE, generator) & (split != "all")
    indices = np.flatnonzero(in_test if split == "test" else ~in_test)
    if part in ("learn", "validation"):  # a generator of its own: the choices of other splits stay as they were
        validation = _held_out(labels[indices], VALIDATION_SHARE, np.random.default_rng([SEED, 1]))
        indices = indices[validation if part == "validation" else ~validation]
    if limit is None or limit >= len(indices):
        return indices
    ranks, _ = _ranks(labels[indices], generator)
    by_rank = np.lexsort([generator.random(len(indices)), ranks])  # one of each class, then another of each
    return np.sort(indices[by_rank[:limit]])


def _held_out(labels: np.ndarray, share: float, generator: np.random.Generator) -> np.ndarray:
    """Mark a random share of each class; at least one image of a class that has two."""
    ranks, counts = _ranks(labels, generator)
    return ranks < np.maximum(np.round(share * counts), counts > 1)


def _ranks(labels: np.ndarray, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """For each image its place in a random order of its class, and the size of its class."""
    _, group, counts = np.unique(labels, return_inverse=True, return_counts=True)
    shuffled = generator.permutation(len(labels))
    by_group = shuffled[np.argsort(group[shuffled], kind="stable")]
    ranks = np.empty(len(labels), int)
    ranks[by_group] = np.arange(len(labels)) - (np.cumsum(counts) - counts)[group[by_group]]
    return ranks, counts[group]
