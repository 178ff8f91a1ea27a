"""WebDataset shards: tar files in which members of one name, but for their endings, are one sample.

They are read by index like files: where each image lies is found out once, and kept. The names of members are only ever
shown, and compared with each other; nothing is unpacked.
"""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from us3l.data.catalogue import IMAGE_SUFFIXES, Blocks, Catalogue, Names, encode_labels
from us3l.data.contents import status_numbers
from us3l.data.decode import LARGEST_FILE, Encoded
from us3l.data.index import Index, indexed, status, statuses
from us3l.data.splits import split_names
from us3l.system.errors import UserError
from us3l.system.files import read_bytes

CLASS_FILES = ("classnames.txt", "classes.txt")
LABEL_KEYS = ("label", "cls")
LARGEST_LABEL = 2**16  # bytes of a member that tells the label
LARGEST_HEADER = 2**20  # bytes of a member's long name and the like


def open_shards(root: Path, shards: Sequence[Path], progress: Callable[[int, int], None] | None = None) -> Catalogue:
    """The images of shards below `root`, labelled by .cls or .json members.

    Shards are divided into splits by the beginning of their names, or by the folders they are in. Classes are named by
    a file classnames.txt or classes.txt, a name a line, beside them.
    """
    relative = [str(path.relative_to(root)) for path in shards]
    parts = {name: re.split(r"[-_./]", name)[0] for name in relative}  # train-0000.tar or train/0000.tar: train
    train, test = split_names(sorted(set(parts.values())))
    if train and test:
        relative = [name for name in relative if parts[name] in train + test]
    kind = json.dumps(["shards", *relative])
    index = indexed(root, kind, lambda: _index(root, relative, progress), lambda index: len(index.arrays["offsets"]))
    arrays = index.arrays
    if not len(arrays["offsets"]):
        raise UserError(f"{shards[0]}: no images in it (looked for members *{' *'.join(IMAGE_SUFFIXES)})")
    labels, classes = arrays["labels"], index.values["classes"]
    names = _class_names(root)
    if names and classes and all(name.isdecimal() for name in classes):
        numbers = np.array([int(name) for name in classes])
        if numbers.max() >= len(names):
            raise UserError(f"{root}: label {numbers.max()} has no name; {len(names)} classes are named")
        labels, classes = np.where(labels < 0, -1, numbers[labels]), names
    bounds = arrays["bounds"]
    in_test = np.repeat([parts[name] in test for name in relative], np.diff(bounds)) if train and test else None
    files = _Shards(root, relative, index.statuses, bounds, arrays["offsets"], arrays["sizes"], _names(arrays))
    blocks = Blocks(bounds[:-1][np.diff(bounds) > 0], np.zeros(np.count_nonzero(np.diff(bounds)), np.int64))
    return Catalogue(
        files.name, files.read, labels, classes, in_test, blocks, sizes=files.sizes_of, statuses=files.statuses_of
    )


def _names(arrays: dict[str, np.ndarray]) -> Names:
    return Names(arrays["text"], arrays["ends"])


@dataclass
class _Shards:
    root: Path
    shards: Sequence[str]
    statuses: np.ndarray
    """Of the shards when they were indexed."""
    bounds: np.ndarray
    """The first image of each shard, and the number of all."""
    offsets: np.ndarray
    sizes: np.ndarray
    names: Names

    def name(self, index: int) -> str:
        shard = int(np.searchsorted(self.bounds, index, side="right")) - 1
        return f"{self.shards[shard]}: {self.names[index]}"

    def sizes_of(self, indices: np.ndarray) -> np.ndarray:
        return self.sizes[indices]

    def statuses_of(self, indices: np.ndarray) -> np.ndarray:
        return status_numbers(self.statuses)[np.searchsorted(self.bounds, indices, side="right") - 1]

    def read(self, indices: np.ndarray) -> Iterator[Encoded]:
        for shard, (start, end) in enumerate(pairwise(self.bounds)):
            inside = indices[(indices >= start) & (indices < end)]
            if len(inside):
                yield from self._read_shard(shard, inside)

    def _read_shard(self, shard: int, indices: np.ndarray) -> Iterator[Encoded]:
        path = self.root / self.shards[shard]
        try:
            with open(path, "rb", buffering=0) as file:
                if status(os.fstat(file.fileno())) != tuple(self.statuses[shard]):
                    raise UserError(f"{path} has changed since it was indexed: start again")
                for index in indices:
                    size = int(self.sizes[index])
                    yield os.pread(file.fileno(), size, int(self.offsets[index])) if size <= LARGEST_FILE else None
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror}") from None


@dataclass(frozen=True)
class _Sample:
    """An image in a shard, and what its neighbours tell of its label."""

    name: str
    offset: int
    size: int
    label: int | str | None


def _index(root: Path, shards: Sequence[str], progress: Callable[[int, int], None] | None) -> Index:
    found = statuses(root, shards)
    offsets, sizes, counts = array("q"), array("q"), [0]
    labels: list[int | str | None] = []

    def names() -> Iterator[str]:
        for number, shard in enumerate(shards):
            for sample in _samples(root / shard):
                offsets.append(sample.offset)
                sizes.append(sample.size)
                labels.append(sample.label)
                yield sample.name
            counts.append(len(offsets))
            if progress:
                progress(number + 1, len(shards))

    packed = Names.packed(names())
    encoded, classes = encode_labels(labels)
    arrays = {"text": packed.text, "ends": packed.ends, "labels": encoded, "bounds": np.array(counts, np.int64)}
    arrays |= {"offsets": np.frombuffer(offsets, np.int64), "sizes": np.frombuffer(sizes, np.int64)}
    return Index(arrays, {"classes": classes}, Names.packed(shards), found)


def _samples(path: Path) -> Iterator[_Sample]:
    """The images of a shard, one a sample: members that follow each other and have one name before the first dot."""
    image: tarfile.TarInfo | None = None
    label: int | str | None = None
    key, place = ("", ""), -1
    try:
        with _Headers(path) as file, tarfile.open(fileobj=file, mode="r:") as archive:
            while member := archive.next():
                archive.members = []  # type: ignore[attr-defined]  # tarfile would keep them all
                if member.offset_data <= place or member.size < 0:
                    raise tarfile.ReadError("a member lies before the one before it")
                place = member.offset_data
                folder, _, base = member.name.rpartition("/")
                stem, _, ending = base.partition(".")
                if (folder, stem) != key:
                    if image:
                        yield _Sample(image.name, image.offset_data, image.size, label)
                    key, image, label = (folder, stem), None, None
                if not member.isreg() or member.issparse():
                    continue
                if image is None and f".{ending.lower()}" in IMAGE_SUFFIXES:
                    image = member
                elif label is None and ending in ("cls", "json") and member.size <= LARGEST_LABEL:
                    label = _label(ending, os.pread(file.fileno(), member.size, member.offset_data))
            if image:
                yield _Sample(image.name, image.offset_data, image.size, label)
            if os.pread(file.fileno(), tarfile.BLOCKSIZE, archive.offset).strip(b"\0"):
                raise tarfile.ReadError("a header is wrong")  # which tarfile takes for the end
    except (tarfile.TarError, OSError, ValueError, OverflowError, RecursionError) as error:
        raise UserError(f"{path}: not a tar file, or damaged ({error}); fetch it again") from None


class _Headers(io.FileIO):
    """A file of which only headers are read; one that asks for more memory than any header needs is refused."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or not 0 <= size <= LARGEST_HEADER:
            raise tarfile.ReadError(f"a header of {size} bytes")
        return super().read(size)


def _label(ending: str, content: bytes) -> int | str | None:
    """The class in a .cls member (a number or a name), or in a .json one; None if there is none."""
    try:
        text = content.decode()
        if ending == "json":
            found = json.loads(text)
            values = [found.get(key) for key in LABEL_KEYS] if isinstance(found, dict) else [found]
            value = next((value for value in values if value is not None), None)
        else:
            value = int(text) if text.strip().isdecimal() else text.strip()
    except (ValueError, RecursionError):
        return None
    usable = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31
    return value if usable or (isinstance(value, str) and value) else None


def _class_names(root: Path) -> list[str]:
    for name in CLASS_FILES:
        if (root / name).is_file():
            return [line.strip() for line in read_bytes(root / name).decode(errors="replace").strip().splitlines()]
    return []
