"""What a source of images holds, known before any image is decoded."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from us3l.data.decode import Encoded

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
TRAIN = re.compile(r"(train|training)\d*", re.IGNORECASE)
TEST = re.compile(r"(test|val|valid|validation)\d*", re.IGNORECASE)


@dataclass(frozen=True)
class Blocks:
    """Runs of images that are best read together."""

    starts: np.ndarray
    """int64: the index of each block's first image, rising."""
    nbytes: np.ndarray
    """int64: the memory that a reader holds while it is at a block."""


@dataclass(frozen=True)
class Catalogue:
    """The images of a source, by index. It can be sent to other processes."""

    name: Callable[[int], str]
    """What to call an image in a message."""
    read: Callable[[np.ndarray], Iterator[Encoded]]
    """The encoded images of rising indices, in that order."""
    labels: np.ndarray
    """An int64 an image; -1 where unknown."""
    classes: list[str]
    in_test: np.ndarray | None
    """A bool an image, if the source comes with a split."""
    blocks: Blocks | None = None
    """For sources that are slow to read in any order."""

    def __len__(self) -> int:
        return len(self.labels)


def split_names(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """The names that mean training, and those of the first kind present that means testing."""
    train = [name for name in names if TRAIN.fullmatch(name)]
    kinds = {name: match[1].lower() for name in names if (match := TEST.fullmatch(name))}
    kind = min(kinds.values(), default="", key=["test", "val", "valid", "validation"].index)
    return train, [name for name in names if kinds.get(name) == kind]


def encode_labels(values: Iterable[Any]) -> tuple[np.ndarray, list[str]]:
    """Labels as indices into their sorted distinct values; None becomes -1, and so does everything if all are equal.

    >>> encode_labels(["dog", None, "cat"])
    (array([ 1, -1,  0]), ['cat', 'dog'])
    """
    numbers: dict[Any, int] = {}
    codes = np.frombuffer(
        array("q", (-1 if value is None else numbers.setdefault(value, len(numbers)) for value in values)), np.int64
    )
    if len(numbers) < 2:
        return np.full(len(codes), -1), []
    distinct = sorted(numbers, key=lambda value: (isinstance(value, str), value))  # of several files, both may come
    places = np.full(len(numbers) + 1, -1)  # the last is that of -1
    places[[numbers[value] for value in distinct]] = np.arange(len(distinct))
    return places[codes], [str(value) for value in distinct]
