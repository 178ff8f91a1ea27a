"""A folder of exported networks, and its manifest: which widths there are, what each costs and how good it is."""

from __future__ import annotations

import hashlib
import re
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from us3l.data.preprocessing import Preprocessing
from us3l.errors import UserError
from us3l.files import finite, read_json, write_json

Format = Literal["torch", "safetensors", "onnx", "openvino", "executorch"]
VERSION = 1
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Entry:
    """One network of a bundle."""

    width: float
    format: str
    int8: bool
    files: dict[str, str]
    """The sha256 of each file by its name; the first file is the one to open."""
    params: int
    macs: int
    bytes: int
    """Of all its files."""
    features: int
    """Length of the output for one image: of the features, or with a head the number of classes."""
    accuracy: dict[str, Any] | None = None
    """What `us3l evaluate` found at this width: {"data": name, "linear": percent, "knn": percent}."""
    classes: list[str] | None = None
    """With a head: the name of each output."""

    @property
    def key(self) -> tuple[float, str, bool]:
        """What makes it the same network as another: a bundle holds one of each."""
        return self.width, self.format, self.int8


@dataclass(frozen=True)
class Bundle:
    folder: Path
    name: str
    """Of the backbone."""
    preprocessing: Preprocessing
    entries: list[Entry]

    def path(self, entry: Entry) -> Path:
        """The file of an entry to open."""
        return self.folder / next(iter(entry.files))


def write_bundle(bundle: Bundle) -> None:
    """Write the manifest; the files of its entries are already in the folder."""
    described = {"name": bundle.name, "preprocessing": bundle.preprocessing.to_plain()}
    rows = [asdict(entry) for entry in bundle.entries]
    write_json(bundle.folder / MANIFEST, {"format": VERSION, **described, "entries": rows})


def read_bundle(folder: Path, check: bool = True) -> Bundle:
    """The bundle in a folder; with `check`, its files must be those that were written."""
    manifest = folder / MANIFEST
    if not manifest.is_file():
        raise UserError(f"{folder} is no bundle: there is no {MANIFEST} in it; make one with us3l export")
    content = read_json(manifest)
    if content.get("format") != VERSION:
        raise UserError(f"{manifest} has format {content.get('format')!r}, but this version reads {VERSION}")
    name: Any = content.get("name")
    rows: Any = content.get("entries")
    try:
        demand(isinstance(name, str), "name", name)
        demand(isinstance(rows, list), "entries", rows)
        preprocessing = Preprocessing.from_plain(content.get("preprocessing"))
        bundle = Bundle(folder, name, preprocessing, [_entry(row) for row in rows])
    except (ValueError, UserError) as error:
        raise UserError(f"{manifest} is damaged: {error}; export again") from None
    keys = [entry.key for entry in bundle.entries]
    names = [name for entry in bundle.entries for name in entry.files]
    if len(set(keys)) < len(keys) or len(set(names)) < len(names):
        raise UserError(f"{manifest} is damaged: it names a network or a file twice; export again")
    if check:
        check_files(bundle)
    return bundle


def check_files(bundle: Bundle) -> None:
    for entry in bundle.entries:
        for name, expected in entry.files.items():
            path = bundle.folder / name
            if not path.resolve().is_relative_to(bundle.folder.resolve()):
                raise UserError(f"{path} leads out of the bundle: put the file itself there")
            if not path.is_file():
                raise UserError(f"{path} is missing, but {MANIFEST} names it; export again")
            if checksum(path) != expected:
                raise UserError(f"{path} is not the file that was exported: its checksum differs; export again")


def checksum(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def demand(good: bool, name: str, value: Any) -> None:
    if not good:
        raise ValueError(f"{name} cannot be {value!r:.80}")


def _entry(row: object) -> Entry:
    known = {field.name for field in fields(Entry)}
    if not isinstance(row, dict) or row.keys() != known:
        raise ValueError(f"an entry must have {', '.join(sorted(known))}")
    demand(finite(row["width"]) and 0 < row["width"] <= 1, "width", row["width"])
    demand(row["format"] in get_args(Format), "format", row["format"])
    demand(isinstance(row["int8"], bool), "int8", row["int8"])
    demand(isinstance(row["files"], dict) and bool(row["files"]), "files", row["files"])
    for name, digest in row["files"].items():
        demand(plain(name), "a file's name", name)
        demand(isinstance(digest, str) and re.fullmatch("[0-9a-f]{64}", digest) is not None, "a checksum", digest)
    for name in ("params", "macs", "bytes", "features"):
        demand(isinstance(row[name], int) and finite(row[name]) and row[name] > 0, name, row[name])
    accuracy, classes = row["accuracy"], row["classes"]
    if accuracy is not None:
        demand(isinstance(accuracy, dict) and isinstance(accuracy.get("data"), str), "accuracy", accuracy)
        values = [accuracy.get(kind) for kind in ("linear", "knn")]
        demand(all(value is None or (finite(value) and 0 <= value <= 100) for value in values), "accuracy", accuracy)
    if classes is not None:
        demand(isinstance(classes, list) and all(isinstance(name, str) for name in classes), "classes", classes)
        demand(len(classes) == row["features"], "the number of classes", len(classes))
    return Entry(**row)


def plain(name: str) -> bool:
    """Whether it names a file inside the folder, on any system.

    >>> plain("resnet18-0.5x.onnx"), plain("../secret"), plain("/etc/passwd"), plain("C:secret")
    (True, False, False, False)
    """
    return re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*", name) is not None
