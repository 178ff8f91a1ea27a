"""A parquet file of embeddings: a row per image, with its name and, where there is one, its label.

The columns are `file`, `embedding` (a list of float32) and `label`. While a file is made, its rows lie in a folder
beside it, in parts that are written whole. So a job that was stopped goes on where it was, and its file has the same
bytes as if it had not been stopped.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from us3l.run.records import check_version
from us3l.system.errors import UserError
from us3l.system.files import check_regular, locked, parse_json, read_json, replacing, write_json

FORMAT = 1
SUFFIX = ".parquet"
KEY = "us3l"  # of what the file says about itself, a JSON text
ABOUT = "about.json"


@dataclass(frozen=True)
class Embeddings:
    """The embeddings of some images."""

    files: list[str]
    """The name of each image in its folder, parquet file or shard."""
    values: np.ndarray
    """N x C, float32."""
    labels: list[str | None] | None = None
    """The name of each image's class; None where there are none."""
    about: Mapping[str, Any] | None = None
    """Which model, width and data they are of; None of a file that does not say."""

    def __len__(self) -> int:
        return len(self.files)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A dictionary for each image."""
        labels = {} if self.labels is None else {"label": self.labels}
        columns: dict[str, Sequence[Any]] = {"file": self.files, **labels, "embedding": list(self.values)}
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


@dataclass(frozen=True)
class Portion:
    """Embeddings of some of the images, in order."""

    files: list[str]
    values: np.ndarray
    labels: list[str | None] | None
    damaged: list[str]
    """The images among them that could not be read, each with the reason."""


# Making a file


class Building:
    """A file of embeddings that is being made: the parts that are done.

    Args:
        path: Of the file.
        about: What makes it this file and no other: plain values.
    """

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        self.path, self.about = path, about
        self.folder = parts_folder(path)

    @property
    def done(self) -> int:
        """How many parts there are."""
        number = 0
        while self._place(number).exists():
            number += 1
        return number

    def add(self, part: Portion) -> None:
        """Write the next part, whole."""
        import pyarrow.parquet as pq

        notes = {"damaged": part.damaged}
        with self._writing(), replacing(self._place(self.done)) as temporary:
            pq.write_table(_table(part, notes), temporary)

    def damaged(self) -> list[str]:
        """The images that could not be read, each with the reason."""
        return [line for part in self._parts() for line in part.damaged]

    def finish(self) -> None:
        """Join the parts to the file, which takes the place of an earlier one, and remove them."""
        import pyarrow.parquet as pq

        about = {"format": FORMAT, **self.about}
        labelled = next(self._parts()).labels is not None
        with (
            self._writing(),
            replacing(self.path) as temporary,
            pq.ParquetWriter(temporary, _schema(labelled, about), use_dictionary=["label"]) as writer,
        ):
            for part in self._parts():  # a row group each
                writer.write_table(_table(part, about))
        self.remove()

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def _parts(self) -> Iterator[Portion]:
        """One after the other, so that no more than one is in memory."""
        return (_read_part(self._place(number)) for number in range(self.done))

    def _place(self, number: int) -> Path:
        return self.folder / f"{number:06}.parquet"

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UserError(
                f"cannot write {self.path}: {error.strerror or error}; {self.folder.name} beside it keeps the "
                f"{self.done} parts that are done: make room, and the same call goes on with them"
            ) from None


@contextmanager
def building(path: Path, about: Mapping[str, Any], overwrite: bool = False) -> Iterator[Building]:
    """Begin a file, or go on with one that was begun for the same model, width and images. A failure before its first
    part leaves nothing behind.

    Args:
        path: Of the file.
        about: See `Building`.
        overwrite: Start again, also where a file of this name is there already.
    """
    check_suffix(path)
    made = Building(path, about)
    with locked(made.folder):
        known = read_json(made.folder / ABOUT) if (made.folder / ABOUT).exists() else None
        if known is not None and known != about and not overwrite:
            changed = sorted(name for name in {*known, *about} if known.get(name) != about.get(name))
            raise UserError(
                f"{made.folder} was begun with another {' and '.join(changed)}: remove it, or start again by "
                "`overwrite`"
            )
        if known != about:
            for old in made.folder.glob("*.parquet"):
                old.unlink()
            write_json(made.folder / ABOUT, about)
        try:
            yield made
        except BaseException:
            if not made.done:
                made.remove()
            raise


def check_out(path: Path, about: Mapping[str, Any] | None = None, overwrite: bool = False) -> bool:
    """Whether a file is there already, of the same model, width and images; one of others is a `UserError`."""
    check_suffix(path)
    if overwrite or not os.path.lexists(path):
        return False
    if about is not None and read_about(path) == {"format": FORMAT, **about}:
        return True
    raise UserError(f"{path} already exists: choose another `out`, or replace it with `overwrite`")


def check_suffix(path: Path) -> None:
    """Raise a `UserError` unless a file has the name of a file of embeddings."""
    if path.suffix.lower() != SUFFIX:
        raise UserError(
            f"{path}: a file of embeddings ends with {SUFFIX}; for other kinds take the arrays of "
            "`us3l.embed(...).embeddings`"
        )


def parts_folder(path: Path) -> Path:
    """Where the parts of an unfinished file are."""
    return path.with_name(f"{path.name}.parts")


# What it holds


def _schema(labelled: bool, notes: Mapping[str, Any]) -> Any:
    import pyarrow as pa

    columns = [("file", pa.string()), ("embedding", pa.list_(pa.float32()))]
    columns += [("label", pa.string())] if labelled else []
    return pa.schema(columns, {KEY: json.dumps(notes)})


def _table(part: Portion, notes: Mapping[str, Any]) -> Any:
    import pyarrow as pa

    count, dimensions = part.values.shape
    values = pa.array(np.ascontiguousarray(part.values, np.float32).reshape(-1))
    ends = pa.array(np.arange(count + 1, dtype=np.int32) * dimensions)
    columns = [pa.array(map(plain_text, part.files), pa.string()), pa.ListArray.from_arrays(ends, values)]
    if part.labels is not None:
        columns.append(pa.array(part.labels, pa.string()))
    return pa.Table.from_arrays(columns, schema=_schema(part.labels is not None, notes))


def plain_text(name: str) -> str:
    """A file's name as text: one that is not valid UTF-8 with marks for the bytes that are not."""
    return name.encode(errors="surrogateescape").decode(errors="backslashreplace")


# Reading a file


def read_embeddings(path: str | Path) -> Embeddings:
    """Return what a file of embeddings holds.

    Args:
        path: Of the file. One of other origin will do, if it has the columns `file` and `embedding`.
    """
    path = Path(path)
    check_suffix(path)
    if not path.exists() and parts_folder(path).is_dir():
        raise UserError(f"{path} is not finished: the same `us3l.embed` that began it goes on with it")
    if not path.exists():
        raise UserError(f"there is no file {path}: us3l embed writes it")
    with _readable(path):
        import pyarrow.parquet as pq

        table = pq.read_table(path)
        labels = table["label"].to_pylist() if "label" in table.column_names else None
        labels = None if labels is None else [None if label is None else str(label) for label in labels]
        files, values = [str(name) for name in table["file"].to_pylist()], _values(table["embedding"])
        if values.ndim != 2 or not values.size or len(files) != len(values):
            raise ValueError("it has no rows, or not one embedding of one length for each")
        if not np.isfinite(values).all():
            raise ValueError("some numbers are not finite")
        return Embeddings(files, values, labels, _about(path, table.schema.metadata))


def read_about(path: Path) -> dict[str, Any] | None:
    """What a file says about itself; None if it does not."""
    with _readable(path):
        import pyarrow.parquet as pq

        return _about(path, pq.read_schema(path).metadata)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    import pyarrow as pa

    check_regular(path)
    try:
        yield
    except UserError:
        raise
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, MemoryError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"cannot read {path}: it is damaged, or not a file of embeddings ({reason:.200})") from None


def _about(path: Path, metadata: Mapping[bytes, bytes] | None) -> dict[str, Any] | None:
    if (text := (metadata or {}).get(KEY.encode())) is None:
        return None
    about = parse_json(text)
    if not isinstance(about, dict):
        raise ValueError("what it says about itself is not an object")
    check_version(path, about.get("format"), (FORMAT,), "embed again")
    return about


def _values(column: Any) -> np.ndarray:
    """A column of lists as one array; chunk by chunk, as all together may be too long for one list."""
    import pyarrow.compute as pc

    chunks = [chunk for chunk in column.chunks if len(chunk)]
    if len({length for chunk in chunks for length in pc.unique(pc.list_value_length(chunk)).to_pylist()}) > 1:
        raise ValueError("the embeddings are not of one length")
    arrays = [chunk.flatten().to_numpy(zero_copy_only=False).reshape(len(chunk), -1) for chunk in chunks]
    return np.concatenate(arrays).astype(np.float32, copy=False) if arrays else np.zeros((0, 0), np.float32)


def _read_part(path: Path) -> Portion:
    with _readable(path):
        import pyarrow.parquet as pq

        table = pq.read_table(path)
        notes = parse_json(table.schema.metadata[KEY.encode()])
        labels = table["label"].to_pylist() if "label" in table.column_names else None
        return Portion(table["file"].to_pylist(), _values(table["embedding"]), labels, notes["damaged"])
