"""Parquet files with a column of encoded images, in the layout of the Hugging Face Hub."""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import pairwise, repeat
from pathlib import Path
from typing import Any

import numpy as np

from us3l.data.catalogue import Blocks, Catalogue, encode_labels
from us3l.data.contents import status_numbers
from us3l.data.decode import Encoded
from us3l.data.index import status
from us3l.data.splits import split_names
from us3l.system.errors import UserError
from us3l.system.streams import one_line

IMAGE_COLUMNS = ("image", "img")
LABEL_COLUMNS = ("label", "labels", "fine_label")
LABELS_AT_ONCE = 2**16
ROWS_AT_ONCE = 32  # of row groups too large to be kept
HELD_BYTES = 2**28  # of row groups that a reader keeps for the next batch


def open_parquet(files: Sequence[Path]) -> Catalogue:
    parts = {file: re.split(r"[-_.]", file.name)[0] for file in files}  # train-00000-of-00002.parquet: train
    train, test = split_names(sorted(set(parts.values())))
    tables = [_Table(file) for file, part in parts.items() if not (train and test) or part in train + test]
    counts = [table.rows for table in tables]
    if not sum(counts):
        raise UserError(f"{files[0]}: no rows")

    left_out = next((table.no_classes for table in tables if table.no_classes), "")
    values = (value for table in tables for value in table.labels())
    classes = tables[0].classes
    if len(classes) > 1 and all(table.classes == classes for table in tables):
        labels = np.fromiter((-1 if value is None else value for value in values), np.int64, sum(counts))
        if labels.max() >= len(classes):
            raise UserError(f"{files[0]}: label {labels.max()} has no name; the schema names {len(classes)} classes")
    else:
        labels, classes = encode_labels(values)

    in_test = np.repeat([parts[table.path] in test for table in tables], counts) if train and test else None
    joined = _Tables(tables)
    return Catalogue(
        joined.name,
        joined.read,
        labels,
        classes,
        in_test,
        joined.blocks,
        sizes=joined.sizes,
        statuses=joined.statuses,
        left_out=left_out,
    )


class _Tables:
    """Parquet files, one after the other. The row groups used last are kept, up to `HELD_BYTES`."""

    def __init__(self, tables: Sequence[_Table]) -> None:
        self.tables = tables
        self.bounds = np.cumsum([0, *(table.rows for table in tables)])
        self.kept: OrderedDict[tuple[Path, int], list[Any]] = OrderedDict()
        self.held = 0  # bytes of those that are kept

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"kept": OrderedDict(), "held": 0}

    @property
    def blocks(self) -> Blocks:
        """Row groups."""
        starts = [start + table.bounds[:-1] for start, table in zip(self.bounds[:-1], self.tables, strict=True)]
        return Blocks(np.concatenate(starts), np.concatenate([table.group_bytes for table in self.tables]))

    def sizes(self, indices: np.ndarray) -> np.ndarray:
        """Those of the files that they are in."""
        files = np.array([table.path.stat().st_size for table in self.tables], np.int64)
        return files[np.searchsorted(self.bounds, indices, side="right") - 1]

    def statuses(self, indices: np.ndarray) -> np.ndarray:
        places = np.searchsorted(self.bounds, indices, side="right") - 1
        numbers = np.zeros(len(self.tables), np.int64)
        for place in np.unique(places):
            with self.tables[place].readable():
                numbers[place] = status_numbers(np.array([status(self.tables[place].path.stat())]))[0]
        return numbers[places]

    def name(self, index: int) -> str:
        place = int(np.searchsorted(self.bounds, index, side="right")) - 1
        return f"{self.tables[place].path.name} row {index - self.bounds[place]}"

    def read(self, indices: np.ndarray) -> Iterator[Encoded]:
        for table, (start, end) in zip(self.tables, pairwise(self.bounds), strict=True):
            rows = indices[(indices >= start) & (indices < end)] - start
            groups = np.searchsorted(table.bounds, rows, side="right") - 1  # a file may have very many of them
            for group in np.unique(groups):
                yield from self._images(table, int(group), rows[groups == group] - table.bounds[group])

    def _images(self, table: _Table, group: int, rows: np.ndarray) -> Iterator[Encoded]:
        start = given = 0
        for column in self._columns(table, group):
            for row in rows[(rows >= start) & (rows < start + len(column))]:
                with table.readable():  # a value that is repeated is kept once, and its number may be wrong
                    value = column[int(row) - start].as_py()
                yield value
                given += 1
            start += len(column)
        if given < len(rows):
            raise table.damaged()

    def _columns(self, table: _Table, group: int) -> Iterator[Any]:
        """The images of a row group, some rows at a time."""
        key = table.path, group
        if key in self.kept:
            self.kept.move_to_end(key)
            yield from self.kept[key]
            return
        columns, size = [], 0
        for column in table.columns(group):
            yield column
            size += column.nbytes
            columns.append(column)
            if size > HELD_BYTES:  # what a file says of its sizes need not be true
                columns.clear()
        if columns and key not in self.kept:
            self.kept[key] = columns
            self.held += size
            while self.held > HELD_BYTES:
                self.held -= sum(column.nbytes for column in self.kept.popitem(last=False)[1])


class _Table:
    """A parquet file, read a few rows at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self.readable():
            import pyarrow.parquet as pq

            metadata, schema = pq.read_metadata(path), pq.read_schema(path)
        self.rows: int = metadata.num_rows
        groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
        self.bounds = np.cumsum([0, *(group.num_rows for group in groups)])
        if not 0 <= self.rows == self.bounds[-1] <= path.stat().st_size or (np.diff(self.bounds) < 0).any():
            raise self.damaged()
        image = next((name for name in IMAGE_COLUMNS if name in schema.names), None)
        if image is None:
            raise UserError(f"{path}: no column 'image' or 'img'; it has {one_line(', '.join(schema.names))}")
        leaf = _leaf(schema.field(image))
        if leaf is None:
            raise UserError(
                f"{path}: column '{image}' holds {one_line(str(schema.field(image).type))}, not image bytes"
            )
        self.image_column = leaf
        # Of all columns: of a damaged file, asking for one column's size can end the process.
        self.group_bytes = np.array([max(0, group.total_byte_size) for group in groups], np.int64)
        label = next((name for name in LABEL_COLUMNS if name in schema.names), None)
        self.label_type = schema.field(label).type if label else None
        self.label_column = label if label and _is_label(self.label_type) else None
        self.no_classes = ""
        """What to say of a column of labels that are not classes."""
        if label and not (self.label_column and self._are_whole()):
            kind = one_line(str(self.label_type))
            self.no_classes = f"the column '{label}' of {path.name}: it holds {kind}, not numbers or names of classes"
            self.label_column = None
        self.classes = self._classes(schema)

    @cached_property
    def file(self) -> Any:
        """Values that it holds once and repeats are not written out: a small file could become any amount."""
        import pyarrow.types as kinds

        repeated = [self.image_column]
        if self.label_column and (_is_text(self.label_type) or kinds.is_dictionary(self.label_type)):
            repeated.append(self.label_column)
        return self._open(repeated)

    @cached_property
    def plain_file(self) -> Any:
        """Read a few rows at a time, without a list of all values."""
        return self._open([])

    def _open(self, repeated: list[str]) -> Any:
        import pyarrow.parquet as pq

        with self.readable():
            return pq.ParquetFile(self.path, read_dictionary=repeated, buffer_size=2**20)

    def __getstate__(self) -> dict[str, Any]:
        files = ("file", "plain_file")  # each process opens its own
        return {name: value for name, value in vars(self).items() if name not in files}

    def _classes(self, schema: Any) -> list[str]:
        """The names of integer labels, if the schema has them where the Hugging Face Hub puts them."""
        import pyarrow.types as kinds

        if self.label_column is None or not kinds.is_integer(self.label_type):
            return []
        try:
            metadata = json.loads(schema.metadata[b"huggingface"])
            return [str(name) for name in metadata["info"]["features"][self.label_column]["names"]]
        except (KeyError, TypeError, ValueError, RecursionError):
            return []

    def labels(self) -> Iterator[int | str | None]:
        """A label per row; None where there is none, or more than one."""
        import pyarrow as pa
        import pyarrow.types as kinds

        if self.label_column is None:
            yield from repeat(None, self.rows)
            return
        for column in self._label_columns():
            with self.readable():
                values: list[Any] | None = None
                if kinds.is_dictionary(column.type):
                    values, column = column.dictionary.to_pylist(), column.indices
                codes = column.cast(pa.int64(), safe=not kinds.is_floating(column.type)).to_pylist()
                for code in codes:
                    value = None if code is None or code < 0 else code
                    yield value if values is None or value is None else values[value]

    def _label_columns(self) -> Iterator[Any]:
        """The labels of some rows at a time; not-a-numbers, which libraries write for what is missing, are left out."""
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.types as kinds

        with self.readable():
            for batch in self.file.iter_batches(LABELS_AT_ONCE, columns=[self.label_column]):
                column = batch.column(0)
                if kinds.is_floating(column.type):
                    column = column.cast(pa.float64())
                    column = pc.if_else(pc.is_nan(column), None, column)
                yield column

    def _are_whole(self) -> bool:
        """Whether labels are whole numbers or names; columns with gaps are often written as numbers with a point."""
        import pyarrow.compute as pc
        import pyarrow.types as kinds

        if not kinds.is_floating(self.label_type):
            return True
        with self.readable():
            wholes = (pc.all(pc.equal(pc.floor(column), column)).as_py() for column in self._label_columns())
            return all(whole is not False for whole in wholes)

    def columns(self, group: int) -> Iterator[Any]:
        """The encoded images of a row group: all of a small one, some rows at a time of a large one."""
        large = min(self.group_bytes[group], self.path.stat().st_size) > HELD_BYTES
        rows = ROWS_AT_ONCE if large else max(1, int(self.bounds[group + 1] - self.bounds[group]))
        file = self.plain_file if large else self.file
        with self.readable():
            for batch in file.iter_batches(rows, row_groups=[group], columns=[self.image_column]):
                column = batch.column(0)
                yield column.field("bytes") if "." in self.image_column else column

    @contextmanager
    def readable(self) -> Iterator[None]:
        """Whatever pyarrow says of a damaged file comes as one line."""
        import pyarrow as pa

        try:
            yield
        except (pa.ArrowException, IndexError, OSError, MemoryError, UnicodeDecodeError) as error:
            raise self.damaged() from error

    def damaged(self) -> UserError:
        return UserError(f"{self.path}: not a readable parquet file, or damaged; fetch it again")


def _leaf(field: Any) -> str | None:
    """The column of bytes in a column of images, if there is one."""
    import pyarrow.types as kinds

    struct = kinds.is_struct(field.type) and field.type.get_field_index("bytes") >= 0
    kind = field.type.field("bytes").type if struct else field.type
    if not (kinds.is_binary(kind) or kinds.is_large_binary(kind)):
        return None
    return f"{field.name}.bytes" if struct else field.name


def _is_label(kind: Any) -> bool:
    import pyarrow.types as kinds

    plain = kind.value_type if kinds.is_dictionary(kind) else kind
    return _is_text(kind) or kinds.is_integer(plain) or kinds.is_floating(kind) or kinds.is_boolean(kind)


def _is_text(kind: Any) -> bool:
    import pyarrow.types as kinds

    plain = kind.value_type if kinds.is_dictionary(kind) else kind
    return kinds.is_string(plain) or kinds.is_large_string(plain)
