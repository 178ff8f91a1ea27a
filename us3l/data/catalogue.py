"""What a folder of images or a set of parquet files holds, known before any image is decoded."""

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from us3l.data.decode import Encoded
from us3l.errors import UserError

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
TRAIN = re.compile(r"(train|training)\d*", re.IGNORECASE)
TEST = re.compile(r"(test|val|valid|validation)\d*", re.IGNORECASE)
IMAGE_COLUMNS = ("image", "img")
LABEL_COLUMNS = ("label", "labels", "fine_label")
ROWS_AT_ONCE = 512


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

    def __len__(self) -> int:
        return len(self.labels)


def catalogue(path: Path) -> Catalogue:
    """The images in a folder, a parquet file, a folder of parquet files, or a single image."""
    if path.is_dir():
        for folder in (path, path / "data"):
            if files := sorted(file for file in folder.glob("*.parquet") if not file.name.startswith(".")):
                return _parquet(files)
        return _folder(path)
    if path.suffix.lower() == ".parquet":
        return _parquet([path])
    if path.suffix.lower() in IMAGE_SUFFIXES:
        return _labelled_by_folder(path.parent, [Path(path.name)], None, label_depth=0)
    raise UserError(
        f"{path}: neither a folder, a parquet file nor an image; give a folder of images or a .parquet file"
    )


def _folder(root: Path) -> Catalogue:
    paths = _image_paths(root)
    if not paths:
        raise UserError(f"{root}: no images in this folder or below it (looked for {' '.join(IMAGE_SUFFIXES)})")
    tops = sorted({path.parts[0] for path in paths if len(path.parts) > 1})
    train, test = _split_names(tops)
    if train and test:
        paths = [path for path in paths if path.parts[0] in train + test]
        return _labelled_by_folder(root, paths, np.array([path.parts[0] in test for path in paths]), label_depth=1)
    if train and all(path.parts[0] in train for path in paths):
        return _labelled_by_folder(root, paths, None, label_depth=1)
    return _labelled_by_folder(root, paths, None, label_depth=0)


def _labelled_by_folder(root: Path, paths: Sequence[Path], in_test: np.ndarray | None, label_depth: int) -> Catalogue:
    """Image files below `root`, labelled by their folder at `label_depth`."""
    labels, classes = _encode(
        [path.parts[label_depth] if len(path.parts) > label_depth + 1 else None for path in paths]
    )
    return listed(root, paths, labels, classes, in_test)


def listed(
    root: Path, paths: Sequence[Path], labels: np.ndarray, classes: list[str], in_test: np.ndarray | None
) -> Catalogue:
    """Image files below `root`."""
    files = _Files(root, paths)
    return Catalogue(files.name, files.read, labels, classes, in_test)


@dataclass(frozen=True)
class _Files:
    root: Path
    paths: Sequence[Path]

    def name(self, index: int) -> str:
        return str(self.paths[index])

    def read(self, indices: np.ndarray) -> Iterator[Encoded]:
        return (self.root / self.paths[index] for index in indices)


def _image_paths(root: Path) -> list[Path]:
    """Relative paths of all images below `root`, links followed, sorted; hidden files and folders are left out."""
    paths: list[Path] = []
    visited: set[str] = set()
    for folder, subfolders, files in os.walk(root, followlinks=True):
        real = os.path.realpath(folder)
        if real in visited:  # a link to a folder above would never end
            subfolders.clear()
            continue
        visited.add(real)
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        below = Path(folder).relative_to(root)
        paths += [
            below / name
            for name in files
            if not name.startswith(".") and os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES
        ]
    return sorted(paths)


def _split_names(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """The names that mean training, and those of the first kind present that means testing."""
    train = [name for name in names if TRAIN.fullmatch(name)]
    kinds = {name: match[1].lower() for name in names if (match := TEST.fullmatch(name))}
    kind = min(kinds.values(), default="", key=["test", "val", "valid", "validation"].index)
    return train, [name for name in names if kinds.get(name) == kind]


def _encode(values: Sequence[Any]) -> tuple[np.ndarray, list[str]]:
    """Labels as indices into their sorted distinct values; None becomes -1, and so does everything if all are equal."""
    distinct = sorted({value for value in values if value is not None})
    if len(distinct) < 2:
        return np.full(len(values), -1), []
    index = {value: position for position, value in enumerate(distinct)}
    return np.array([index.get(value, -1) for value in values]), [str(value) for value in distinct]


def _parquet(files: Sequence[Path]) -> Catalogue:
    parts = {file: re.split(r"[-_.]", file.name)[0] for file in files}  # train-00000-of-00002.parquet: train
    train, test = _split_names(sorted(set(parts.values())))
    tables = [_Table(file) for file, part in parts.items() if not (train and test) or part in train + test]
    counts = [table.rows for table in tables]
    if not sum(counts):
        raise UserError(f"{files[0]}: no rows")

    values = [value for table in tables for value in table.labels()]
    classes = tables[0].classes
    if len(classes) > 1:
        labels = np.array([-1 if value is None else value for value in values])
        if labels.max() >= len(classes):
            raise UserError(f"{files[0]}: label {labels.max()} has no name; the schema names {len(classes)} classes")
    else:
        labels, classes = _encode(values)

    in_test = np.repeat([parts[table.path] in test for table in tables], counts) if train and test else None
    joined = _Tables(tables)
    return Catalogue(joined.name, joined.read, labels, classes, in_test)


@dataclass(frozen=True)
class _Tables:
    """Parquet files, one after the other."""

    tables: Sequence["_Table"]

    def name(self, index: int) -> str:
        for table in self.tables:
            if index < table.rows:
                break
            index -= table.rows
        return f"{table.path.name} row {index}"

    def read(self, indices: np.ndarray) -> Iterator[Encoded]:
        start = 0
        for table in self.tables:
            rows = indices - start
            yield from table.images(rows[(rows >= 0) & (rows < table.rows)])
            start += table.rows


class _Table:
    """A parquet file with a column of encoded images, read a few rows at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: int = self.file.metadata.num_rows
        names = self.file.schema_arrow.names
        self.image_column = next((name for name in IMAGE_COLUMNS if name in names), None)
        if self.image_column is None:
            raise UserError(f"{path}: no column 'image' or 'img'; it has {', '.join(names)}")
        self.label_column = next((name for name in LABEL_COLUMNS if name in names), None)

    @cached_property
    def file(self) -> Any:
        import pyarrow.parquet as pq

        with self._readable():
            return pq.ParquetFile(self.path)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "file"}  # each process opens its own

    @property
    def classes(self) -> list[str]:
        """The names of integer labels, if the schema has them where the Hugging Face Hub puts them."""
        import pyarrow.types as kinds

        schema = self.file.schema_arrow
        if self.label_column is None or not kinds.is_integer(schema.field(self.label_column).type):
            return []
        try:
            metadata = json.loads(schema.metadata[b"huggingface"])
            return list(metadata["info"]["features"][self.label_column]["names"])
        except (KeyError, TypeError, ValueError):
            return []

    def labels(self) -> list[int | str | None]:
        """A label a row; None where there is none, or one that is no single class."""
        import pyarrow.types as kinds

        if self.label_column is None:
            return [None] * self.rows
        with self._readable():
            column = self.file.read(columns=[self.label_column]).column(0)
        if kinds.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if kinds.is_integer(column.type):
            return [None if value is None or value < 0 else value for value in column.to_pylist()]
        return column.to_pylist() if kinds.is_string(column.type) else [None] * self.rows

    def images(self, rows: np.ndarray) -> Iterator[bytes | None]:
        """The encoded images of rising row numbers."""
        start = 0
        for group in range(self.file.num_row_groups):
            end = start + self.file.metadata.row_group(group).num_rows
            if np.any((rows >= start) & (rows < end)):
                yield from self._images_of_group(group, rows[(rows >= start) & (rows < end)] - start)
            start = end

    def _images_of_group(self, group: int, rows: np.ndarray) -> Iterator[bytes | None]:
        import pyarrow.types as kinds

        start = 0
        with self._readable():
            for batch in self.file.iter_batches(ROWS_AT_ONCE, row_groups=[group], columns=[self.image_column]):
                column = batch.column(0)
                if kinds.is_struct(column.type) and column.type.get_field_index("bytes") >= 0:
                    column = column.field("bytes")
                if not (kinds.is_binary(column.type) or kinds.is_large_binary(column.type)):
                    raise UserError(f"{self.path}: column '{self.image_column}' holds {column.type}, not image bytes")
                for row in rows[(rows >= start) & (rows < start + len(column))]:
                    yield column[int(row) - start].as_py()
                start += len(column)

    @contextmanager
    def _readable(self) -> Iterator[None]:
        import pyarrow as pa

        try:
            yield
        except (pa.ArrowException, OSError) as error:
            raise UserError(f"{self.path}: not a readable parquet file, or damaged; fetch it again") from error
