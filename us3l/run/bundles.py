"""A folder of exported networks, and its manifest: which widths there are, what each costs and how good it is."""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from us3l import __version__
from us3l.data.preprocessing import Preprocessing
from us3l.run.records import Percent, Positive, check_version, convert, plain, said
from us3l.system.errors import UserError
from us3l.system.files import checksum, is_inside, locked, read_json, write_json
from us3l.width import Width

Format = Literal["torch", "safetensors", "onnx", "openvino", "executorch"]
VERSION = 4
SHARED = "shared"
"""The head of an encoder whose features are in the space that all widths share."""
MANIFEST = "manifest.json"
PATIENCE = 60.0  # seconds to wait for another process that adds to a bundle


FILE_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,254}"
FileName = Annotated[str, Meta(pattern=rf"\A{FILE_NAME}\Z")]
"""Names a file inside the folder, on any system."""
Digest = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
"""A SHA-256."""


@dataclass(frozen=True)
class Entry:
    """One network of a bundle."""

    width: Width
    format: Format
    int8: bool
    files: dict[FileName, Digest]
    """The sha256 of each file by its name; the first file is the one to open."""
    params: Positive
    macs: Positive
    bytes: Positive
    """Of all its files."""
    features: Positive
    """Length of the output for one image: of the features, or with a head the number of classes."""
    accuracy: dict[str, str | Percent | None] | None = None
    """What `us3l evaluate` measured at this width: {"data": name, "linear": percent, "knn": percent}; None in INT8,
    as it was the float network that was measured."""
    classes: list[str] | None = None
    """With a head: the name of each output."""
    head: FileName | None = None
    """Of a classifier: what tells it from others, such as "probe-cifar10". None of an encoder, which gives features."""
    threshold: Annotated[float, Meta(ge=0, le=1)] | None = None
    """Of a classifier: the probability from which on it is sure; None if it is not known."""
    weights: Digest | None = None
    """The sha256 of the model's weights; None if it was not known."""
    reference: str | None = None
    """Its outputs for check.png where it was exported, by which a device can check its own: float32, little-endian, as
    base64. None if they are not known."""

    def __post_init__(self) -> None:
        if not self.files:
            raise ValueError("files: there are none")
        texts = [name for name, value in (self.accuracy or {"data": ""}).items() if isinstance(value, str)]
        if texts != ["data"]:
            raise ValueError(f"accuracy: cannot be {self.accuracy!r:.80}")
        if self.classes is not None and len(self.classes) != self.features:
            raise ValueError(f"classes: {len(self.classes)} names for {self.features} outputs")
        if (self.head in (None, SHARED)) != (self.classes is None):
            raise ValueError(f"head: {self.head!r:.80} does not go with the classes")
        if self.reference is not None and not _is_floats(self.reference, self.features):
            raise ValueError(f"reference: expected {self.features} numbers")

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


@dataclass(frozen=True)
class Manifest:
    """What manifest.json declares; see `Bundle`."""

    name: str
    preprocessing: dict[str, Any]
    entries: list[Entry]
    others: dict[FileName, Digest] = field(default_factory=dict)
    us3l: str | None = None
    torch: str | None = None


def write_bundle(bundle: Bundle) -> None:
    """Write the manifest; the files of its entries are already in the folder."""
    described = (bundle.name, bundle.preprocessing.to_plain(), bundle.entries, bundle.others)
    manifest = Manifest(*described, __version__, version("torch"))
    write_json(bundle.folder / MANIFEST, {"format": VERSION, **plain(manifest)})


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
    """Raise a `UserError` unless a bundle holds networks of this model only."""
    digests = {entry.weights for entry in bundle.entries} | weights
    if (bundle.name, bundle.preprocessing) != (name, preprocessing) or len(digests - {None}) > 1:
        raise UserError(
            f"{bundle.folder} holds networks of another model ({bundle.name}): move them, or choose another `out`"
        )


def read_bundle(folder: Path, check: bool = True) -> Bundle:
    """Return the bundle in a folder; with `check`, its files must be those that were written."""
    path = folder / MANIFEST
    if not path.is_file():
        raise UserError(f"{folder} is not a bundle: there is no {MANIFEST} in it; make one with us3l export")
    content = read_json(path)
    check_version(path, content.get("format"), (VERSION,), "export again")
    try:
        manifest = convert(content, Manifest)
        preprocessing = Preprocessing.from_plain(manifest.preprocessing)
        keys = [entry.key for entry in manifest.entries]
        names = [*manifest.others, *(name for entry in manifest.entries for name in entry.files)]
        if len(set(keys)) < len(keys) or len(set(names)) < len(names):
            raise ValueError("it names a network or a file twice")
    except ValueError as error:
        raise UserError(f"{path} is damaged: {said(error)}; export again") from None
    bundle = Bundle(folder, manifest.name, preprocessing, manifest.entries, manifest.others)
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


def _is_floats(value: str, count: int) -> bool:
    try:
        return all(map(math.isfinite, decode_floats(value, count)))
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
