"""What a result belongs to: the weights of the model it was measured with, and the images it was measured on."""

from __future__ import annotations

import hashlib
import json
import os
import re
import warnings
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from us3l.system.errors import Caution, UserError
from us3l.system.files import check_regular, checksum, expanded, open_regular, parse_json

LARGEST_HEADER = 100 * 2**20  # bytes, as in safetensors itself
EvaluationSplit = Literal["test", "validation"]
"""Which part of the data an evaluation tests on."""
CHECKSUMS = ("checksum", "files", "pixels", "contents")


@dataclass(frozen=True)
class DataIdentity:
    """Labelled images, told apart from others that have the same name."""

    source: str
    """A known name, or the resolved path."""
    train_images: int
    test_images: int
    classes: int
    checksum: str | None
    """Of the labels of all images and the names of the classes; None if damaged images were left out."""
    files: str | None = None
    """A checksum of the encoded images: of their names and sizes, and of the bytes of some; None if not at hand."""
    pixels: str | None = None
    """A checksum of the sum of each image's pixels; None unless all were in memory."""
    contents: str | None = None
    """A checksum of the bytes of every image; None if not all have been read."""

    def agrees(self, other: DataIdentity) -> bool:
        """Whether both are of the same images, as far as is known of both."""
        unknown: dict[str, Any] = {
            name: None for name in CHECKSUMS if None in (getattr(self, name), getattr(other, name))
        }
        return replace(self, **unknown) == replace(other, **unknown)

    @property
    def short(self) -> str:
        """A few letters that tell it from others of the same name."""
        return short(self.source)


def short(source: str) -> str:
    """A few letters that tell a source from others."""
    return hashlib.sha256(source.encode(errors="surrogateescape")).hexdigest()[:6]


def name_of(data: Any) -> str:
    """Return what config.yaml calls images: their path or name, or the type of what a Python program gave instead."""
    if data is None:
        return ""
    if isinstance(data, str | Path):
        return str(data)
    count = f"{len(data):,} images" if hasattr(data, "__len__") else "images"
    return f"<{type(data).__name__} of {count}>"


def source_of(data: str | Path) -> str:
    """What data is called whichever way it is given: its known name, or its path without links.

    >>> source_of("digits")
    'digits'
    """
    from us3l.data.datasets import NAMED_SETS

    if data in NAMED_SETS:
        return str(data)
    try:
        return os.path.realpath(expanded(data))
    except ValueError:  # a zero byte, which no path has
        return str(data)


def data_path(data: str) -> str:
    """The absolute path of images that are named by a path, as seen from the present working folder; else nothing."""
    from us3l.data.datasets import NAMED_SETS

    path = expanded(data)
    return os.path.abspath(path) if data and data not in NAMED_SETS and os.path.exists(path) else ""


def data_source(data: str, path: str) -> str:
    """How to name a run's images now: by where they were when it began, else as they were named then."""
    return path if path and os.path.exists(path) else data


def identify(data: str | Path, train: Any, test: Any) -> DataIdentity:
    """The identity of the images that `data` names.

    Args:
        data: as given by the user.
        train, test: what was opened there: images in memory or in files, see `us3l.data.images.Images`.
    """
    counts = [count(images) for images in (train, test)]
    whole = counts == [len(train), len(test)]
    digest = hashlib.sha256(repr(train.classes).encode(errors="backslashreplace"))
    for images in (train, test):
        digest.update(repr(None if images.labels is None else images.labels.tolist()).encode())
    return DataIdentity(
        source_of(data),
        counts[0],
        counts[1],
        len(train.classes or []),
        digest.hexdigest() if whole else None,
        files=_fingerprint([getattr(images, "files", images) for images in (train, test)]),
        pixels=_fingerprint([images if hasattr(images, "files") else None for images in (train, test)]),
        contents=_contents(train, test),
    )


def _contents(train: Any, test: Any) -> str | None:
    digests = [images.contents.digest() for images in (train, test)]
    return None if None in digests else hashlib.sha256("".join(digests).encode()).hexdigest()


def _fingerprint(sets: list[Any]) -> str | None:
    """A checksum of several sets of images; None if one is not at hand."""
    if any(images is None for images in sets):
        return None
    return hashlib.sha256(repr([images.fingerprint() for images in sets]).encode()).hexdigest()


def count(images: Any) -> int:
    """How many images there are, the damaged ones included, whether they were found by now or not."""
    return len(images) + len(getattr(images, "skipped", ()))


def clean(name: str) -> str:
    """A name for files, of any folder's name.

    >>> clean("../my photos\\n"), clean(".hidden")
    ('_my photos_', 'hidden')
    """
    safe = "".join(letter if letter.isprintable() and letter not in "/\\" else "_" for letter in name)
    return safe.lstrip(".") or "data"


def slug(text: str) -> str:
    """Return any text as a part of a file's name, of letters, digits, `_`, `.` and `-`.

    >>> slug("my photos/2026"), slug("AMD EPYC 7B13 (64 cores)")
    ('my-photos-2026', 'AMD-EPYC-7B13-64-cores')
    """
    return re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-.") or "unnamed"


# Weights


@dataclass(frozen=True)
class Weights:
    """The state of a model that something was measured with."""

    weights: str
    """The SHA-256 of weights.safetensors."""
    statistics: dict[str, str]
    """For each calibrated width, the start of the SHA-256 of its batch-norm statistics: widths may be added later."""

    def differences(self, present: Weights) -> list[str]:
        """What of the present state is not as it was."""
        same = all(present.statistics.get(width) == digest for width, digest in self.statistics.items())
        return ["weights"] * (self.weights != present.weights) + ["statistics"] * (not same)


def weights_of(model: Path) -> Weights:
    """Those of the model in a folder."""
    key: list[Any] = []
    for name in ("weights", "statistics"):
        path = check_regular(model / f"{name}.safetensors")
        found = path.stat()
        key.append((path.resolve(), found.st_mtime_ns, found.st_size, found.st_ino))
    return _weights(*key)


@lru_cache(maxsize=64)  # for as long as the files stay as they are
def _weights(weights: tuple[Path, int], statistics: tuple[Path, int]) -> Weights:
    return Weights(checksum(weights[0]), _digests(statistics[0]))


def _digests(path: Path) -> dict[str, str]:
    """The digest of each width's tensors, without making tensors of them."""
    digests: dict[str, Any] = {}
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        try:
            length = int.from_bytes(file.read(8), "little")
            if length > min(size, LARGEST_HEADER):
                raise ValueError("its header is too long")
            header = parse_json(file.read(length))
            header.pop("__metadata__", None)
            for key in sorted(header):
                start, end = header[key]["data_offsets"]
                if not 0 <= start <= end <= size:
                    raise ValueError("a tensor lies outside of it")
                file.seek(8 + length + start)
                digest = digests.setdefault(key.partition("/")[0], hashlib.sha256())
                digest.update(json.dumps([key, header[key]["dtype"], header[key]["shape"]]).encode())
                digest.update(file.read(end - start))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"cannot read {path}: the file is cut short or damaged ({error})") from None
    return {width: digest.hexdigest()[:16] for width, digest in digests.items()}


def check_weights(path: Path, measured: Weights | None, present: Weights, again: str) -> None:
    """That a result belongs to the weights that are there now. Results of earlier versions do not say.

    Args:
        path: the file of the result, for messages.
        measured: what the result was found with.
        present: those of the model.
        again: what to do about a mismatch.
    """
    if measured is None:
        text = f"{path} does not say which weights it belongs to: {again}, if in doubt"
        warnings.warn(text, Caution, stacklevel=3)
    elif changed := measured.differences(present):
        raise UserError(f"{path} belongs to another model, whose {' and '.join(changed)} differ: {again}")
