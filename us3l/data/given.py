"""Images that a Python program has: pixels, a list of files, or a data set of torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from us3l.data.catalogue import Catalogue, encode_labels, of_pixels
from us3l.data.decode import Encoded
from us3l.data.folder import listed
from us3l.data.images import check_pixels
from us3l.data.names import Names
from us3l.system.errors import UserError
from us3l.system.files import expanded

LABELS = ("targets", "labels", "_labels")
"""Where torchvision's data sets keep the labels of all images."""


def of_tensor(images: Tensor) -> Catalogue:
    """Pixels, N x 3 x H x W, uint8."""
    check_pixels(images, "images")
    if not len(images):
        raise UserError("images: there are none")
    return of_pixels(images.cpu().permute(0, 2, 3, 1).contiguous().numpy())


def of_files(files: Sequence[str | Path]) -> Catalogue:
    """Image files by their paths, without labels."""
    if not files:
        raise UserError("the list of image files is empty")
    if wrong := [file for file in files if not isinstance(file, str | Path)]:
        raise UserError(f"a list of images must hold paths of files, not {type(wrong[0]).__name__}")
    names = Names.packed(str(expanded(file)) for file in files)
    return listed(Path(), names, np.full(len(files), -1), [], None)


def of_dataset(dataset: Any, progress: Callable[[int, int], None]) -> Catalogue:
    """A data set of images or (image, label), the images by PIL or as uint8 arrays or tensors.

    Labels are where torchvision's data sets have them, else every item is looked at once.
    """
    if not len(dataset):
        raise UserError(f"{type(dataset).__name__}: there are no images in it")
    items = _Items(dataset)
    labels = next((found for name in LABELS if _fits(found := getattr(dataset, name, None), dataset)), None)
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
