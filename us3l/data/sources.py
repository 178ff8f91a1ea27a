"""A set of images by name, from a path, or from what a Python program has; in memory, or still to be decoded."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from us3l.data.cached import are_small, cache_all, cached_bytes
from us3l.data.catalogue import IMAGE_SUFFIXES, Catalogue, Names, encode_labels, of_pixels
from us3l.data.datasets import NAMED_SETS, open_named
from us3l.data.decode import Encoded
from us3l.data.image_folder import is_image, listed, open_folder, open_image
from us3l.data.images import ImageSet as ImageSet
from us3l.data.images import check_pixels
from us3l.data.in_memory import Counter, decode_all
from us3l.data.parquet import open_parquet
from us3l.data.shards import open_shards
from us3l.data.splits import Split as Split
from us3l.data.splits import choose, is_split_name
from us3l.data.streamed import ImageFiles as ImageFiles
from us3l.data.streamed import measure_white
from us3l.data.view_settings import Views
from us3l.system.errors import UserError, alike, did_you_mean
from us3l.system.files import expanded
from us3l.system.progress import SILENT, Progress
from us3l.system.streams import printable

Data = str | Path | Tensor | Sequence[str | Path] | Dataset | ImageSet | ImageFiles
"""What a person calls images: a known name, a path (see docs/data.md), pixels (uint8, N x 3 x H x W), a list of image
files, a torch data set of images or of (image, label), or a set that is already open."""

TRAINING_MEMORY = 2**33  # bytes; a fixed bound, not the memory at hand, as a run must resume as it began
SHOWN = 5  # images to name of those that are left out
LABELS = ("targets", "labels", "_labels")
"""Where torchvision's data sets keep the labels of all images."""


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
    labelled: bool = False,
    progress: Progress = SILENT,
) -> ImageSet | ImageFiles:
    """Open images in memory, or to be read as they are needed.

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
        labelled: Leave out the images without a label, if others have one.
        progress: Told what is worth saying, and how far it is.

    Returns:
        An `ImageSet` in memory, or `ImageFiles` that are read as they are needed. Both have the same methods.
    """
    if isinstance(data, ImageSet):
        return _part(data, split, limit)
    files = find(data, split, limit, root, progress)
    if labelled:
        files = _labelled(files, progress)
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
    progress: Progress = SILENT,
) -> ImageSet | ImageFiles:
    """Open images to make random views of; see `open_images`.

    Squares of one size that are no larger than a view are one tensor. Others are kept as large as their crops need
    them, if they take no more memory than allowed; else they are read as they are needed. What is chosen depends on the
    images and on these settings alone, so that a run resumes as it began.

    Args:
        views: How views are made: the largest size and the smallest crop.
    """
    if isinstance(data, ImageSet):
        return _part(data, split, limit)
    files = find(data, split, limit, None, progress)
    shapes = [] if stream else files.shapes()
    if stream or cached_bytes(shapes, len(files), views) > memory:
        progress.say(f"{files.name}: {len(files):,} images, read as they are needed")
        return files
    if are_small(shapes, views):
        return _decoded(files, views.size, progress, exact=True)
    with progress.counting(f"loading {files.name}") as counting:
        images = cache_all(files, views, counting.so_far)
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
    """Return images in memory, as one tensor, with labels if there are any; see `open_images`."""
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
    """Return the images that `load` would decode, of which nothing is decoded yet; see `open_images`."""
    files = _files(data, split, limit, root, progress)
    name, source = files.name, files.source
    if source.statuses is not None and (measured := measure_white(source)):
        largest, white = measured
        files = replace(files, source=source.with_white(white))
        progress.say(
            f"{name}: integers of up to {largest:,} in a sample, read as {white.bit_length()} bits: white is {white:,}"
        )
    if source.left_out:
        progress.say(f"{name}: left out {source.left_out}", style="yellow")
    tell_skipped(progress, f"folders and links of {name}", source.unreadable)
    if split == "pretrain" and source.in_test is None and len(files) < len(source) and limit is None:
        progress.say(
            f"{name}: {len(source) - len(files):,} of {len(source):,} images, a fifth of each class, are held out "
            "for evaluation"
        )
    if split == "learn":
        progress.say(f"{name}: a tenth of each class of the training images is held out as validation images")
    return files


def _labelled(files: ImageFiles, progress: Progress) -> ImageFiles:
    """The images that have a label, if any has; the number of the others is said."""
    has_label = files.source.labels[files.chosen] >= 0
    if has_label.all() or not has_label.any():
        return files
    missing = len(files) - int(has_label.sum())
    progress.say(f"{files.name}: left out {missing:,} of {len(files):,} images, which have no label", style="yellow")
    return replace(files, chosen=files.chosen[has_label])


def peek(data: Data, limit: int | None = None, progress: Progress = SILENT) -> ImageSet | ImageFiles:
    """Return the images that `open_for_training` would open, without a word about them; see `open_images`."""
    if isinstance(data, ImageSet):
        return _part(data, "pretrain", limit)
    return _files(data, "pretrain", limit, None, progress)


def _files(data: object, split: Split, limit: int | None, root: str | Path | None, progress: Progress) -> ImageFiles:
    name, source = _open(data, root, progress)
    chosen = choose(source.labels, source.in_test, split, limit)
    if not len(chosen):
        raise UserError(f"{name}: no images in the {split} split; there are {len(source)} in all")
    return ImageFiles(name, source, chosen)


def _open(data: object, root: str | Path | None, progress: Progress) -> tuple[str, Catalogue]:
    """A name for the data, and what there is of it."""
    if isinstance(data, ImageFiles):
        chosen = data.chosen
        return data.name, data.source.subset(chosen)
    if isinstance(data, Tensor):
        return "images", _of_tensor(data)
    if isinstance(data, list | tuple):
        return "files", _of_files(data)
    if isinstance(data, str | Path):
        if data in NAMED_SETS:
            return str(data), open_named(str(data), root)
        path = _existing_path(data)
        with progress.counting(f"looking through the shards of {data}") as counting:
            return _name(path), _open_path(path, counting.so_far)
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        with progress.counting("looking up labels") as counting:
            return type(data).__name__, _of_dataset(data, counting.so_far)
    raise UserError(
        f"{type(data).__name__} cannot be read as images; give a name, a path, pixels (uint8, N x 3 x H x W), a list "
        "of image files, or a torch data set with a length"
    )


def _name(path: Path) -> str:
    """What to call the images at a path; a folder named after a split says too little: pets/train.

    >>> _name(Path("/photos/pets/train")), _name(Path("/photos/pets"))
    ('pets/train', 'pets')
    """
    resolved = path.resolve()
    name = f"{resolved.parent.name}/{resolved.name}" if is_split_name(resolved.name) else resolved.name
    return printable(name)


def _decoded(files: ImageFiles, size: int | None, progress: Progress, exact: bool = False) -> ImageSet:
    with progress.counting(f"loading {files.name}") as counting:
        images = decode_all(files, size, counting.so_far, exact)
    tell_damaged(progress, images.name, images.skipped)
    return images


def _part(images: ImageSet, split: Split, limit: int | None) -> ImageSet:
    labels = np.full(len(images), -1) if images.labels is None else images.labels.cpu().numpy()
    chosen = choose(labels, None, split, limit)
    return images if len(chosen) == len(images) else images.subset(torch.from_numpy(chosen))


def tell_damaged(progress: Progress, name: str, damaged: Sequence[str]) -> None:
    """Say which images were left out."""
    tell_skipped(progress, f"damaged images of {name}", damaged)


def tell_skipped(progress: Progress, what: str, lines: Sequence[str]) -> None:
    """Say how many of what were left out, and name the first, each by a line."""
    if lines:
        progress.say(f"skipped {len(lines)} {what}:", style="yellow")
        for line in lines[:SHOWN]:
            progress.say(f"  {line}")
        if len(lines) > SHOWN:
            progress.say(f"  and {len(lines) - SHOWN} more")


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


def _open_path(path: Path, progress: Counter) -> Catalogue:
    """The images at a path; `progress` is called with the number of shards looked through, and of all."""
    if path.is_dir():
        for folder in (path, path / "data"):
            if files := _files_like(folder, "*.parquet"):
                return open_parquet(files)
        if images := open_folder(path):
            return images
        if shards := _files_like(path, "*.tar") or _files_like(path, "*/*.tar"):
            return open_shards(path, shards, progress)
        raise UserError(
            f"{path}: no images in this folder or below it (looked for {' '.join(IMAGE_SUFFIXES)}), "
            "and neither *.parquet nor *.tar in it"
        )
    if path.suffix.lower() == ".parquet":
        return open_parquet([path])
    if path.suffix.lower() == ".tar":
        return open_shards(path.parent, [path], progress)
    if is_image(path.name):
        return open_image(path)
    raise UserError(
        f"{path}: neither a folder, a parquet file, a WebDataset shard nor an image; give a folder of images, a "
        ".parquet or a .tar file"
    )


def _files_like(folder: Path, pattern: str) -> list[Path]:
    return sorted(path for path in folder.glob(pattern) if not path.name.startswith(".") and path.is_file())


def _of_tensor(images: Tensor) -> Catalogue:
    """Pixels, N x 3 x H x W, uint8."""
    check_pixels(images, "images")
    if not len(images):
        raise UserError("images: there are none")
    return of_pixels(images.cpu().permute(0, 2, 3, 1).contiguous().numpy())


def _of_files(files: Sequence[str | Path]) -> Catalogue:
    """Image files by their paths, without labels."""
    if not files:
        raise UserError("the list of image files is empty")
    if wrong := [file for file in files if not isinstance(file, str | Path)]:
        raise UserError(f"a list of images must hold paths of files, not {type(wrong[0]).__name__}")
    names = Names.packed(str(expanded(file)) for file in files)
    return listed(Path(), names, np.full(len(files), -1), [], None)


def _of_dataset(dataset: Any, progress: Counter) -> Catalogue:
    """A data set of images or (image, label), the images by PIL or as uint8 arrays or tensors.

    Labels are where torchvision's data sets have them, else every item is looked at once.
    """
    if not len(dataset):
        raise UserError(f"{type(dataset).__name__}: there are no images in it")
    items = _Items(dataset)
    labels = next((values for name in LABELS if _fits(values := getattr(dataset, name, None), dataset)), None)
    if labels is None and isinstance(dataset[0], tuple | list):
        labels = []
        for index in range(len(dataset)):
            labels.append(dataset[index][1])
            progress(index + 1, len(dataset))
    values = [_label(label) for label in labels] if labels is not None else [None] * len(dataset)
    codes, names = encode_labels(values)
    numbers = [value for value in values if isinstance(value, int)]
    classes = getattr(dataset, "classes", None)
    if not isinstance(classes, list | tuple) or not names or len(numbers) < len(values):
        classes = ()
    if classes and max(numbers) < len(classes):
        codes, names = np.array(numbers, np.int64), [str(name) for name in classes]
    return Catalogue(items.name, items.read, codes, names, None)


def _fits(labels: Any, dataset: Any) -> bool:
    return labels is not None and hasattr(labels, "__len__") and len(labels) == len(dataset)


def _label(value: Any) -> int | str | None:
    plain = value.item() if hasattr(value, "item") and getattr(value, "ndim", 0) == 0 else value
    good = isinstance(plain, str) or (isinstance(plain, int) and not isinstance(plain, bool) and plain >= 0)
    return plain if good else None


@dataclass(frozen=True)
class _Items:
    dataset: Any

    def name(self, index: int) -> str:
        return f"item {index}"

    def read(self, indices: np.ndarray) -> Iterator[Encoded]:
        return (self._pixels(int(index)) for index in indices)

    def _pixels(self, index: int) -> Encoded:
        item = self.dataset[index]
        image = item[0] if isinstance(item, tuple | list) else item
        if isinstance(image, Image.Image):
            return image
        array = image.cpu().permute(1, 2, 0).numpy() if isinstance(image, Tensor) and image.ndim == 3 else image
        if not isinstance(array, np.ndarray) or array.ndim != 3 or array.shape[2] != 3 or array.dtype != np.uint8:
            raise UserError(
                f"{type(self.dataset).__name__}: item {index} is neither a PIL image nor bytes of red, green and blue "
                "(uint8; a tensor 3 x H x W, an array H x W x 3)"
            )
        return array
