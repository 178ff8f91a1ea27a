"""What a source of images holds, known before any image is decoded: names, labels, splits."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from us3l.data.contents import Contents
from us3l.data.decode import Deep, Encoded

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")


@dataclass(frozen=True)
class Names:
    """Strings in two arrays: a million file names take 30 MB, as Python's own objects 100 and more.

    Arrays are also what forked processes share without copying, and what a file can hold as it is.

    >>> names = Names.packed(["cat/1.png", "dog/2.png"])
    >>> len(names), names[1], list(names)
    (2, 'dog/2.png', ['cat/1.png', 'dog/2.png'])
    """

    text: np.ndarray
    """uint8: all of them, one after the other; file names may be no valid UTF-8, and are kept as they are."""
    ends: np.ndarray
    """int64: where each ends."""

    @classmethod
    def packed(cls, names: Iterable[str]) -> Names:
        text, ends = bytearray(), array("q")
        for name in names:
            text += name.encode(errors="surrogateescape")
            ends.append(len(text))
        return cls(np.frombuffer(text, np.uint8), np.frombuffer(ends, np.int64))

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: int) -> str:
        start = self.ends[index - 1] if index > 0 else 0
        return self.text[start : self.ends[index]].tobytes().decode(errors="surrogateescape")

    def __iter__(self) -> Iterator[str]:
        return (self[index] for index in range(len(self)))


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
    """One int64 per image; -1 where unknown."""
    classes: list[str]
    in_test: np.ndarray | None
    """A bool an image, if the source comes with a split."""
    blocks: Blocks | None = None
    """For sources that are slow to read in any order."""
    sizes: Callable[[np.ndarray], np.ndarray] | None = None
    """The encoded bytes of images, as far as they are known without reading them."""
    statuses: Callable[[np.ndarray], np.ndarray] | None = None
    """A number per image that changes whenever its file does: int64, above 0; 0 where there is no such file."""
    left_out: str = ""
    """What to say of files in the source that are not images of a kind that is read."""
    unreadable: Sequence[str] = ()
    """Folders and links in which there may be more images, each with the reason why they cannot be read."""
    numbered: bool = False
    """Whether images have numbers only, no names of their own."""
    contents: Contents = field(default_factory=lambda: Contents.unread(0))
    """Hashes of all images that have been read so far; shared by all copies of this that are in the same process."""

    def __post_init__(self) -> None:
        if len(self.contents) != len(self.labels):
            object.__setattr__(self, "contents", Contents.unread(len(self.labels)))

    def __len__(self) -> int:
        return len(self.labels)

    def with_white(self, white: int) -> Catalogue:
        """The same images, integers of more than 8 bits in which this is the value of white."""
        return replace(self, read=_DeepImages(self, white).read)

    def subset(self, chosen: np.ndarray) -> Catalogue:
        """The images at these rising indices, as a pool of their own."""
        some = _Some(self, chosen)
        return Catalogue(
            some.name,
            some.read,
            self.labels[chosen],
            self.classes,
            None,
            sizes=some.sizes if self.sizes else None,
            statuses=some.statuses if self.statuses else None,
            numbered=self.numbered,
            contents=self.contents[chosen],
        )


@dataclass(frozen=True)
class _Some:
    """Some of the images of a catalogue."""

    whole: Catalogue
    chosen: np.ndarray

    def name(self, index: int) -> str:
        return self.whole.name(self.chosen[index])

    def read(self, indices: np.ndarray) -> Iterator[Encoded]:
        return self.whole.read(self.chosen[indices])

    def sizes(self, indices: np.ndarray) -> np.ndarray:
        assert self.whole.sizes is not None
        return self.whole.sizes(self.chosen[indices])

    def statuses(self, indices: np.ndarray) -> np.ndarray:
        assert self.whole.statuses is not None
        return self.whole.statuses(self.chosen[indices])


@dataclass(frozen=True)
class _DeepImages:
    """The images of a catalogue, with the value of white."""

    whole: Catalogue
    white: int

    def read(self, indices: np.ndarray) -> Iterator[Encoded]:
        for encoded in self.whole.read(indices):
            yield Deep(encoded, self.white) if isinstance(encoded, Path | bytes) else encoded


@dataclass(frozen=True)
class Pixels:
    """Images that are in memory already."""

    pixels: np.ndarray
    """N x H x W x 3, uint8; or N x H x W, float32: grey ones from 0 to 255."""

    def name(self, index: int) -> str:
        return f"image {index}"

    def read(self, indices: np.ndarray) -> Iterator[Encoded]:
        return (self.pixels[index] for index in indices)


def of_pixels(
    pixels: np.ndarray, labels: np.ndarray | None = None, classes: Sequence[str] = (), in_test: np.ndarray | None = None
) -> Catalogue:
    """A catalogue of images that are in memory."""
    images = Pixels(pixels)
    labels = np.full(len(pixels), -1) if labels is None else labels
    return Catalogue(images.name, images.read, labels.astype(np.int64), list(classes), in_test, numbered=True)


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
