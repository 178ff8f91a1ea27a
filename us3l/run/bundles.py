"""A folder of exported networks, and its manifest: which widths there are, what each costs and how good it is."""

from __future__ import annotations

import base64
import math
import re
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, get_args

from us3l import __version__
from us3l.data.preprocessing import Preprocessing
from us3l.run.checks import check_version
from us3l.run.evaluations import METRICS
from us3l.system.errors import UserError
from us3l.system.files import checksum, finite, is_inside, locked, read_json, write_json
from us3l.width import Width

Format = Literal["torch", "safetensors", "onnx", "openvino", "executorch"]
VERSION = 4
"""Entries of version 1 name neither their head nor their weights; before version 3 none were of the shared space, and
before version 4 they held no outputs to check a device by."""
LATER = ({"reference"}, {"reference", "head", "weights"})
"""What entries of earlier versions lack."""
SHARED = "shared"
"""The head of an encoder whose features are in the space that all widths share."""
MANIFEST = "manifest.json"
PATIENCE = 60.0  # seconds to wait for another process that adds to a bundle


@dataclass(frozen=True)
class Entry:
    """One network of a bundle."""

    width: Width
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
    head: str | None = None
    """Of a classifier: what tells it from others, such as "probe-cifar10". None of an encoder, which gives features."""
    weights: str | None = None
    """The sha256 of the model's weights; None if it was not known."""
    reference: str | None = None
    """Its outputs for check.png where it was exported, by which a device can check its own: float32, little-endian, as
    base64. None if they are not known."""

    @property
    def key(self) -> tuple[Width, str, bool, str]:
        """What makes it the same network as another: a bundle holds one of each."""
        return self.width, self.format, self.int8, self.head or ""


@dataclass(frozen=True)
class Bundle:
    folder: Path
    name: str
    """Of the backbone."""
    preprocessing: Preprocessing
    entries: list[Entry]
    others: dict[str, str] = field(default_factory=dict)
    """The SHA-256 of files that are not networks, such as example.py, by their names."""

    def path(self, entry: Entry) -> Path:
        """The file of an entry to open."""
        return self.folder / next(iter(entry.files))


def write_bundle(bundle: Bundle) -> None:
    """Write the manifest; the files of its entries are already in the folder."""
    made_by = {"us3l": __version__, "torch": version("torch")}
    described = {"name": bundle.name, "preprocessing": bundle.preprocessing.to_plain()} | made_by
    rows = [asdict(entry) for entry in bundle.entries]
    write_json(bundle.folder / MANIFEST, {"format": VERSION, **described, "entries": rows, "others": bundle.others})


def add_entry(new: Bundle) -> Bundle:
    """Add networks to the bundle in a folder, or make one; any number of processes may do so at once.

    Args:
        new: the networks to add, whose files are already in the folder. They take the place of those of the same keys
            and of those whose files theirs have replaced. Its other files are those of the whole bundle.

    Returns:
        The whole bundle.
    """
    with locked(new.folder, PATIENCE):
        bundle = read_bundle(new.folder, check=False) if (new.folder / MANIFEST).exists() else new
        check_same_model(bundle, new.name, new.preprocessing, {entry.weights for entry in new.entries})
        keys = {entry.key for entry in new.entries}
        names = {name for entry in new.entries for name in entry.files}
        kept = [entry for entry in bundle.entries if entry.key not in keys and names.isdisjoint(entry.files)]
        entries = sorted([*kept, *new.entries], key=lambda entry: entry.key)
        bundle = replace(bundle, entries=entries, others=new.others)
        write_bundle(bundle)
    return bundle


def check_same_model(bundle: Bundle, name: str, preprocessing: Preprocessing, weights: set[str | None]) -> None:
    """A bundle holds networks of one model only."""
    known = {entry.weights for entry in bundle.entries} | weights
    if (bundle.name, bundle.preprocessing) != (name, preprocessing) or len(known - {None}) > 1:
        raise UserError(
            f"{bundle.folder} holds networks of another model ({bundle.name}): move them, or choose another `out`"
        )


def read_bundle(folder: Path, check: bool = True) -> Bundle:
    """The bundle in a folder; with `check`, its files must be those that were written."""
    manifest = folder / MANIFEST
    if not manifest.is_file():
        raise UserError(f"{folder} is not a bundle: there is no {MANIFEST} in it; make one with us3l export")
    content = read_json(manifest)
    check_version(manifest, content.get("format"), range(1, VERSION + 1), VERSION)
    name: Any = content.get("name")
    rows: Any = content.get("entries")
    others: Any = content.get("others", {})
    try:
        demand(isinstance(name, str), "name", name)
        demand(isinstance(rows, list), "entries", rows)
        preprocessing = Preprocessing.from_plain(content.get("preprocessing"))
        demand(isinstance(others, dict), "others", others)
        _check_names(others)
        bundle = Bundle(folder, name, preprocessing, [_entry(row) for row in rows], others)
    except (ValueError, UserError) as error:
        raise UserError(f"{manifest} is damaged: {error}; export again") from None
    keys = [entry.key for entry in bundle.entries]
    names = [*bundle.others, *(name for entry in bundle.entries for name in entry.files)]
    if len(set(keys)) < len(keys) or len(set(names)) < len(names):
        raise UserError(f"{manifest} is damaged: it names a network or a file twice; export again")
    if check:
        check_files(bundle)
    return bundle


def check_files(bundle: Bundle) -> None:
    for files in (bundle.others, *(entry.files for entry in bundle.entries)):
        for name, expected in files.items():
            path = bundle.folder / name
            if not is_inside(bundle.folder, path):
                raise UserError(f"{path} leads out of the bundle: put the file itself there")
            if not path.is_file():
                raise UserError(f"{path} is missing, but {MANIFEST} names it; export again")
            if checksum(path) != expected:
                raise UserError(f"{path} is not the file that was exported: its checksum differs; export again")


def demand(good: bool, name: str, value: Any) -> None:
    if not good:
        raise ValueError(f"{name} cannot be {value!r:.80}")


def _entry(row: object) -> Entry:
    known = {column.name for column in fields(Entry)}
    if isinstance(row, dict) and known - row.keys() in LATER:
        head = None if row.get("classes") is None else "probe"
        row = {"head": head, "weights": None, "reference": None} | row
    if not isinstance(row, dict) or row.keys() != known:
        raise ValueError(f"an entry must have {', '.join(sorted(known))}")
    row = row | {"width": Width.from_plain(row["width"])}
    demand(row["format"] in get_args(Format), "format", row["format"])
    demand(isinstance(row["int8"], bool), "int8", row["int8"])
    demand(isinstance(row["files"], dict) and bool(row["files"]), "files", row["files"])
    _check_names(row["files"])
    for name in ("params", "macs", "bytes", "features"):
        demand(isinstance(row[name], int) and finite(row[name]) and row[name] > 0, name, row[name])
    accuracy, classes = row["accuracy"], row["classes"]
    if accuracy is not None:
        demand(isinstance(accuracy, dict) and isinstance(accuracy.get("data"), str), "accuracy", accuracy)
        values = [accuracy.get(kind) for kind in METRICS]
        demand(all(value is None or (finite(value) and 0 <= value <= 100) for value in values), "accuracy", accuracy)
    if classes is not None:
        demand(isinstance(classes, list) and all(isinstance(name, str) for name in classes), "classes", classes)
        demand(len(classes) == row["features"], "the number of classes", len(classes))
    head, weights = row["head"], row["weights"]
    demand((head in (None, SHARED)) == (classes is None) and (head is None or _is_name(head)), "head", head)
    demand(weights is None or _is_digest(weights), "weights", weights)
    reference = row["reference"]
    demand(reference is None or _is_floats(reference, row["features"]), "reference", reference)
    return Entry(**row)


def _check_names(files: dict[str, Any]) -> None:
    for name, digest in files.items():
        demand(plain(name), "a file's name", name)
        demand(_is_digest(digest), "a checksum", digest)


def _is_digest(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None


def _is_floats(value: object, count: int) -> bool:
    try:
        return isinstance(value, str) and all(map(math.isfinite, decode_floats(value, count)))
    except (ValueError, struct.error):
        return False


def encode_floats(values: Sequence[float]) -> str:
    """Numbers in 32 bits as text, which takes few lines of code to read in a browser.

    >>> encode_floats([1.0, -2.5])
    'AACAPwAAIMA='
    """
    return base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode()


def decode_floats(text: str, count: int) -> tuple[float, ...]:
    """What `encode_floats` was given.

    >>> decode_floats("AACAPwAAIMA=", 2)
    (1.0, -2.5)
    """
    return struct.unpack(f"<{count}f", base64.b64decode(text, validate=True))


def _is_name(value: object) -> bool:
    return isinstance(value, str) and plain(value)


def slug(text: str) -> str:
    """Any text as a part of a file's name.

    >>> slug("my photos/2026")
    'my-photos-2026'
    """
    return re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-.") or "data"


def plain(name: str) -> bool:
    """Whether it names a file inside the folder, on any system.

    >>> plain("resnet18-0.5x.onnx"), plain("../secret"), plain("/etc/passwd"), plain("C:secret")
    (True, False, False, False)
    """
    return re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,254}", name) is not None
