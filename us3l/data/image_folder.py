"""Folders of image files, labelled by sub-folder."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path

import numpy as np

from us3l.data.catalogue import IMAGE_SUFFIXES, Catalogue, Names, encode_labels
from us3l.data.contents import UNKNOWN, status_numbers
from us3l.data.decode import Encoded
from us3l.data.index import Index, indexed, status
from us3l.data.splits import split_names
from us3l.system.errors import UserError
from us3l.system.streams import printable

MANY, AT_ONCE = 10_000, 32  # files to ask for their status by several threads, and how many threads
MOST_KINDS = 3  # of files that are left out, to name
LONGEST_SHOWN = 120  # letters of a path in a message


def open_folder(root: Path) -> Catalogue | None:
    """All images below a folder; None if there are none. What was found in a large folder is kept for the next time."""
    index = indexed(root, "folder", lambda: _index(root), _worth_keeping)
    arrays, unreadable = index.arrays, index.values["unreadable"]
    if not len(arrays["labels"]):
        if unreadable:
            raise UserError(f"{root}: no images but what cannot be read, such as {unreadable[0]}")
        return None
    names = Names(arrays["text"], arrays["ends"])
    catalogue = listed(root, names, arrays["labels"], index.values["classes"], arrays.get("in_test"))
    return replace(catalogue, left_out=index.values["left_out"], unreadable=unreadable)


def _worth_keeping(index: Index) -> int:
    """The number of images; none if some of the folder could not be read, which may change without a sign."""
    return 0 if index.values["unreadable"] else len(index.arrays["labels"])


def open_image(path: Path) -> Catalogue:
    """A single image."""
    return listed(path.parent, Names.packed([path.name]), np.array([-1]), [], None)


def listed(root: Path, names: Names, labels: np.ndarray, classes: list[str], in_test: np.ndarray | None) -> Catalogue:
    """Image files below `root`."""
    files = _Files(root, names)
    return Catalogue(files.name, files.read, labels, classes, in_test, sizes=files.sizes, statuses=files.statuses)


@dataclass(frozen=True)
class _Files:
    root: Path
    names: Names

    def name(self, index: int) -> str:
        return printable(self.names[index])

    def read(self, indices: np.ndarray) -> Iterator[Encoded]:
        return (self.root / self.names[index] for index in indices)

    def sizes(self, indices: np.ndarray) -> np.ndarray:
        return np.fromiter((_size(self.root / self.names[index]) for index in indices), np.int64, len(indices))

    def statuses(self, indices: np.ndarray) -> np.ndarray:
        paths = (f"{self.root}/{self.names[index]}" for index in indices)
        if len(indices) < MANY:
            found = list(map(_status, paths))
        else:
            with ThreadPoolExecutor(AT_ONCE) as pool:  # a file system in the network takes its time to answer
                found = list(pool.map(_status, paths, chunksize=256))
        rows = np.array(found, np.int64).reshape(-1, 4)
        return np.where(rows.any(axis=1), status_numbers(rows), UNKNOWN)


def _status(path: str) -> tuple[int, int, int, int]:
    try:
        return status(os.stat(path))
    except OSError:
        return (0, 0, 0, 0)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _index(root: Path) -> Index:
    names, witnesses, statuses, left_out, unreadable = _listing(root)
    names, in_test, depth = _parts(names)
    labels, classes = encode_labels(_folder_at(depth, name) for name in names)
    arrays = {"text": names.text, "ends": names.ends, "labels": labels}
    if in_test is not None:
        arrays["in_test"] = in_test
    values = {"classes": list(map(printable, classes)), "left_out": left_out.summary(), "unreadable": unreadable}
    return Index(arrays, values, witnesses, statuses)


def _parts(names: Names) -> tuple[Names, np.ndarray | None, int]:
    """The images that are in a split, if there are splits; which are in the test split; how deep classes are."""
    tops = {_folder_at(0, name) for name in names}
    train, test = split_names(sorted(top for top in tops if top is not None))
    if train and test:
        known = {*train, *test}
        if tops != known:
            names = Names.packed(compress(names, (_folder_at(0, name) in known for name in names)))
        tested = set(test)
        return names, np.fromiter((_folder_at(0, name) in tested for name in names), bool, len(names)), 1
    return names, None, 1 if train and tops == set(train) else 0


def _folder_at(depth: int, name: str) -> str | None:
    parts = name.split("/", depth + 1)
    return parts[depth] if len(parts) > depth + 1 else None


class _LeftOut:
    """Files that are not images of a kind that is read."""

    def __init__(self) -> None:
        self.first = ""
        self.kinds = Counter[str]()

    def add(self, name: str) -> None:
        self.first = self.first or name
        self.kinds[os.path.splitext(name)[1].lower() or "without an ending"] += 1

    def summary(self) -> str:
        """In a few words; nothing if there are none."""
        if not self.first:
            return ""
        common = [f"{count:,} {kind}" for kind, count in self.kinds.most_common(MOST_KINDS)]
        more = ["others"] if len(self.kinds) > MOST_KINDS else []
        first = printable(self.first)
        return f"{self.kinds.total():,} files of other kinds ({', '.join(common + more)}), such as {first}"


def _listing(root: Path) -> tuple[Names, Names, np.ndarray, _LeftOut, list[str]]:
    """The images below a folder, in order, links followed, without hidden files and folders; the folders read, and
    their statuses; the files left out; the folders and links that cannot be read."""
    unreadable: list[str] = []
    folders: dict[str, os.stat_result] = {}
    left_out = _LeftOut()
    visited: set[tuple[int, int]] = set()

    def entries(below: str) -> Iterator[tuple[str, bool]]:
        """The images and folders in a folder, the latter marked."""
        here, subfolders = [], set()
        try:
            before = os.stat(root / below)
            if (before.st_dev, before.st_ino) in visited:  # a link to a folder above would never end
                return
            with os.scandir(root / below) as scanned:
                for entry in scanned:
                    if entry.name.startswith("."):
                        continue
                    if is_folder(below, entry):
                        subfolders.add(entry.name)
                    elif not is_image(entry.name):
                        left_out.add(below + entry.name)
                        continue
                    here.append(entry.name)
        except OSError as error:
            if not below:
                raise UserError(f"{root}: cannot be read: {error.strerror}") from None
            unreadable.append(f"{_shortened(below)}: {error.strerror}")
            return
        visited.add((before.st_dev, before.st_ino))
        folders[below] = before  # as it was before its names were read
        for name in sorted(here):
            yield below + name, name in subfolders

    def is_folder(below: str, entry: os.DirEntry[str]) -> bool:
        try:
            return entry.is_dir()
        except OSError as error:  # a link to itself; of an image, whoever reads it says so
            if not is_image(entry.name):
                unreadable.append(f"{_shortened(below + entry.name)}: {error.strerror}")
            return False

    def images() -> Iterator[str]:
        unfinished = [entries("")]
        while unfinished:
            for path, is_folder in unfinished[-1]:
                if is_folder:
                    unfinished.append(entries(f"{path}/"))
                    break
                yield path
            else:
                unfinished.pop()

    names = Names.packed(images())
    statuses = np.array([status(before) for before in folders.values()], np.int64)
    return names, Names.packed(folders), statuses, left_out, unreadable


def _shortened(name: str) -> str:
    """A path of any length for a message."""
    half = LONGEST_SHOWN // 2
    return printable(name if len(name) <= LONGEST_SHOWN else f"{name[:half]}...{name[-half:]}")


def is_image(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES
