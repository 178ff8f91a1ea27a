"""Records of results: declared types, and the one store that reads and writes them as JSON in a run's folder.

A record is a frozen dataclass that inherits from `StampedRecord`. Its `Store` says in which folder of a run it lies, in
which version it is written, and which command writes it. Fields that a reader does not know are ignored, so that a new
field needs no new version.
"""

from __future__ import annotations

import csv
import io
import json
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

import msgspec

from us3l import __version__
from us3l.run.identity import Weights, check_weights, clean
from us3l.system.errors import UserError
from us3l.system.files import as_plain, check_regular, parse_json, read_json, write_json, write_text
from us3l.width import Width

if TYPE_CHECKING:
    from torch import Tensor

    from us3l.run.folder import Run


METADATA = "us3l"
"""The key of the header in a safetensors file."""
LARGEST = sys.float_info.max
Number = Annotated[float, msgspec.Meta(ge=-LARGEST, le=LARGEST)]
"""Finite: JSON as Python reads it knows NaN and infinity, which are not measurements."""
Amount = Annotated[float, msgspec.Meta(ge=0, le=LARGEST)]
Percent = Annotated[float, msgspec.Meta(ge=0, le=100)]
WholeNumber = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""Up to where floats tell whole numbers apart."""
Positive = Annotated[int, msgspec.Meta(ge=1, le=2**53)]


@dataclass(frozen=True, kw_only=True)
class StampedRecord:
    """What all records have: their name, and the stamp that `Store.write` puts on them."""

    name: str = ""
    """Of the file, which does not repeat it."""
    weights: Weights | None = None
    """Those of the model that it was measured with. None if there is no model."""
    us3l: str | None = None
    torch: str | None = None
    date: str | None = None


R = TypeVar("R", bound=StampedRecord)
H = TypeVar("H")
T = TypeVar("T")


@dataclass(frozen=True)
class Store(Generic[R]):
    """Where records of one kind lie, and how they are read and written.

    >>> from us3l.run import Run
    >>> from us3l.run.searches import SEARCHES
    >>> SEARCHES.file(Run("runs/photos"), "macs-5e+06")
    PosixPath('runs/photos/search/macs-5e+06.json')
    """

    kind: type[R]
    folder: str
    """The property of `Run` that is the folder's path."""
    version: int
    """The one that is written."""
    command: str
    """The one that writes them, for errors: "evaluate"."""
    earlier: Collection[int] = ()
    """Versions that are read as well."""
    to_file: Callable[[R], dict[str, Any]] | None = None
    """A record as plain values, where the file has another form than the type declares."""
    from_file: Callable[[dict[str, Any]], dict[str, Any]] = dict
    """The way back, to what the type declares. A `KeyError` or `ValueError` means that the file is damaged."""
    clean: Callable[[str], str] = clean
    """Any text as a name of files."""
    other_ending: str | None = None
    """Of JSON files in the folder that are not records."""

    @property
    def remedy(self) -> str:
        """What to do about a file that cannot be read or is of other weights."""
        return f"{self.command} again, with `overwrite`"

    def file(self, run: Run, name: str) -> Path:
        """Return where the record of a name is, or would be."""
        folder: Path = getattr(run, self.folder)
        return folder / f"{self.clean(name)}.json"

    def names(self, run: Run) -> list[str]:
        """Return the names of the records of a run, sorted."""
        folder: Path = getattr(run, self.folder)
        paths = [path for path in sorted(folder.glob("*.json")) if not path.name.startswith(".")]
        return [path.stem for path in paths if not (self.other_ending and path.name.endswith(self.other_ending))]

    def read(self, run: Run, name: str, check: bool = True) -> R:
        """Return a run's record.

        Args:
            run: The run.
            name: The record's.
            check: Whether it is an error if the model's weights are not those it was measured with.
        """
        path = self.file(run, name)
        record = self.load(path)
        if check and run.model.is_dir():
            check_weights(path, record.weights, run.weights, self.remedy)
        return record

    def read_all(self, run: Run, check: bool = True) -> dict[str, R]:
        """Return all records of a run by name; see `read`."""
        return {name: self.read(run, name, check) for name in self.names(run)}

    def load(self, path: Path) -> R:
        """Return the record in a file, whichever weights it was measured with."""
        if not path.exists():
            raise UserError(f"there is no file {path}: `us3l {self.command}` writes it")
        content = read_json(path)
        check_version(path, content.get("version"), (*self.earlier, self.version), self.remedy)
        try:
            return convert(self.from_file(content) | {"name": path.stem}, self.kind)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UserError(f"cannot read {path}: {said(error)}; {self.remedy}") from None

    def check_writable(self, run: Run) -> None:
        """Raise a `UserError` unless records can be written; to be called before the work that one needs."""
        folder: Path = getattr(run, self.folder)
        existing = next(place for place in (folder, *folder.parents) if place.exists())
        try:
            with tempfile.TemporaryFile(dir=existing):
                pass
        except OSError as error:
            raise UserError(f"cannot write to {folder}: {error.strerror or error}") from None

    def stamp(self, run: Run, record: R) -> R:
        """Return the record with the weights of the run's model, the versions and the date of now."""
        weights = run.weights if run.model.is_dir() else None
        date = f"{datetime.now().astimezone():%FT%T%z}"
        name = self.clean(record.name)
        return replace(record, name=name, weights=weights, us3l=__version__, torch=version("torch"), date=date)

    def write(self, run: Run, record: R, folder: Path | None = None) -> R:
        """Write a record.

        Args:
            run: Whose model it is about.
            record: What was measured.
            folder: Another folder than the store's.

        Returns:
            The record as written, stamped.
        """
        stamped = self.stamp(run, record)
        path = self.file(run, stamped.name)
        content = (self.to_file or plain)(stamped)
        del content["name"]
        write_json(folder / path.name if folder else path, {"version": self.version} | content)
        return stamped


def by_date(records: Iterable[R]) -> list[R]:
    """Return records in the order in which they were written."""
    return sorted(records, key=lambda record: record.date or "")


def check_version(path: Path | str, found: Any, known: Collection[int], remedy: str) -> None:
    """Raise a `UserError` unless a file is of a version that this us3l reads.

    Args:
        path: The file, for the message.
        found: The version that it names.
        known: Those that are read; the last is the one that is written.
        remedy: What to do about a version that is not read any more.
    """
    newest = [*known][-1]
    if found not in known:
        later = isinstance(found, int) and found > newest
        raise UserError(
            f"{path} has format {found!r:.40}, but this us3l reads {newest}: {'use a newer one' if later else remedy}"
        )


def plain(value: Any) -> dict[str, Any]:
    """Return a dataclass as dictionaries, lists, numbers and texts."""
    values: dict[str, Any] = msgspec.to_builtins(value, enc_hook=as_plain, order=None)
    return values


def convert(value: Any, kind: type[T]) -> T:
    """Return plain values as a declared type.

    Args:
        value: What JSON or YAML gave. Fields that the type does not have are ignored.
        kind: A dataclass, or what is built of them.

    Raises:
        ValueError: A field is missing or has a wrong value; `said` says which in one line.
    """
    return msgspec.convert(value, kind, dec_hook=_read_custom)


def _read_custom(kind: type, value: Any) -> Any:
    if kind is Width:
        return Width.from_plain(value)
    raise NotImplementedError(kind)


def by_width(values: Mapping[Any, T]) -> dict[Width, T]:
    """Return a dictionary whose keys are widths; a file has them as texts."""
    return {key if isinstance(key, Width) else Width.from_plain(key): value for key, value in values.items()}


def said(error: Exception) -> str:
    """Return in one line what an error says about a file's content.

    >>> said(msgspec.ValidationError("Expected `int`, got `bool` - at `$.widths[0].params`"))
    'widths[0].params: expected int, got bool'
    >>> said(msgspec.ValidationError("Expected `str` matching regex 'x' - at `key` in `$.entries[0].files`"))
    "a name in entries[0].files: expected str matching regex 'x'"
    """
    if isinstance(error, KeyError):
        return f"{error.args[0]!r:.60} is missing"
    text, _, place = str(error).replace("`", "").partition(" - at ")
    place = place.replace("key in $", "a name in ").replace("$", "").replace(" .", " ").removeprefix(".")
    return " ".join(f"{place + ': ' if place else ''}{text[:1].lower()}{text[1:]}".split())[:300]


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]], columns: Collection[str] | None = None) -> None:
    """Write a table for spreadsheets.

    Args:
        path: The file.
        rows: A dictionary per row.
        columns: Their names, in order (default: those of the first row).
    """
    text = io.StringIO()
    table = csv.DictWriter(text, list(columns or rows[0]), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    write_text(path, text.getvalue())


# Tensors with a declared record as the metadata of their safetensors file


def write_described(path: Path, tensors: Mapping[str, Tensor], version: int, header: Any) -> None:
    """Write tensors with a header, which is a dataclass, and its version."""
    from us3l.storage import write_tensors

    write_tensors(path, tensors, {METADATA: json.dumps({"version": version} | plain(header))})


def read_described(
    path: Path, version: int, kind: type[H], build: Callable[[H, dict[str, Tensor]], T], remedy: str
) -> T:
    """Return what a file holds.

    Args:
        path: The file.
        version: The one that is read.
        kind: The header's type.
        build: Makes the result of the header and the tensors; a `KeyError` or `ValueError` means a damaged file.
        remedy: What to do if there is no such file, or it is damaged.
    """
    import safetensors

    if not path.exists():
        raise UserError(f"there is no file {path}: {remedy}")
    check_regular(path)

    def damaged(error: Exception) -> UserError:
        return UserError(f"cannot read {path}: it is cut short or damaged ({said(error)}); {remedy}")

    try:
        with safetensors.safe_open(path, "pt") as file:
            header = parse_json(file.metadata()[METADATA])
            number = header.get("version")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dictionary)
    except (OSError, safetensors.SafetensorError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise damaged(error) from None
    check_version(path, number, (version,), remedy)
    try:
        # Copies: when the mapped file is cut short, touching what lies in it ends the process.
        return build(convert(header, kind), {name: tensor.clone() for name, tensor in tensors.items()})
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise damaged(error) from None
