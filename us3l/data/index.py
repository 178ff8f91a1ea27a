"""What was found out about a large source of images, kept for the next time it is opened.

An index is kept outside the user's folders: in US3L_CACHE, else in ~/.cache/us3l; `US3L_CACHE=off` keeps none.
It holds as long as every file or folder that it was made from is unchanged. A change always shows in these: the system
changes a folder's times whenever a name in it comes, goes or changes, and a shard's with every byte written.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
from safetensors.numpy import save_file

from us3l.data.catalogue import Names
from us3l.system.files import cache_folder, replacing

FORMAT = 3
WORTH_KEEPING = 10_000  # images; fewer are found again in no time
SETTLED = 2 * 10**9  # nanoseconds; a change within the grain of the file system's clock would not show


@dataclass(frozen=True)
class Index:
    """Arrays and plain values, and the files and folders that they were made from."""

    arrays: dict[str, np.ndarray]
    values: dict[str, Any]
    witnesses: Names
    """Paths below the source; the empty one is the source itself."""
    statuses: np.ndarray
    """What `status` said of each witness before it was read: N x 4, int64."""


def status(found: os.stat_result) -> tuple[int, int, int, int]:
    """What differs whenever a file or a folder's list of names does."""
    return found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_size


def statuses(source: Path, witnesses: Iterable[str]) -> np.ndarray:
    found = [status(os.stat(os.path.join(source, name) if name else source)) for name in witnesses]
    return np.array(found, np.int64).reshape(-1, 4)


def indexed(source: Path, kind: str, make: Callable[[], Index], count: Callable[[Index], int]) -> Index:
    """The index of a source: the one that was kept if nothing has changed since, else a new one."""
    kept = _place(source, kind)
    if kept and (found := _read(kept)) and _holds(source, found):
        return found
    began = time.time_ns()
    index = make()
    times = index.statuses[:, :2]
    if kept and count(index) >= WORTH_KEEPING and times.min() > 0 and times.max() < began - SETTLED:
        with suppress(OSError):  # no space, not allowed: then it is made again next time
            _write(kept, index)
    return index


def _place(source: Path, kind: str) -> Path | None:
    folder = cache_folder()
    key = hashlib.sha256(repr((FORMAT, kind, os.path.realpath(source))).encode(errors="surrogateescape"))
    return folder / f"{key.hexdigest()[:32]}.safetensors" if folder else None


def _holds(source: Path, index: Index) -> bool:
    try:
        return np.array_equal(statuses(source, index.witnesses), index.statuses)
    except (OSError, ValueError):
        return False


def _write(path: Path, index: Index) -> None:
    witnesses = {"witnesses.text": index.witnesses.text, "witnesses.ends": index.witnesses.ends}
    with replacing(path) as temporary:
        arrays = {f"arrays.{name}": np.ascontiguousarray(array) for name, array in index.arrays.items()}
        save_file(arrays | witnesses | {"statuses": index.statuses}, temporary, {"values": json.dumps(index.values)})


def _read(path: Path) -> Index | None:
    """None if there is no whole index."""
    try:
        with safetensors.safe_open(path, "np") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dictionary)
            values = json.loads(file.metadata()["values"])
        witnesses = Names(tensors.pop("witnesses.text"), tensors.pop("witnesses.ends"))
        known = tensors.pop("statuses")
    except (OSError, safetensors.SafetensorError, KeyError, TypeError, ValueError):
        return None
    return Index({name.removeprefix("arrays."): array for name, array in tensors.items()}, values, witnesses, known)
