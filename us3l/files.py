"""Writing files so that a reader never sees half of one."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from us3l.errors import UserError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path to write to; on success it is flushed to the disk and takes the place of `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{os.getpid()}.tmp.{path.name}")
    try:
        yield temporary
        os.chmod(temporary, 0o666 & ~current_umask())  # some libraries write files that only their owner may read
        with open(temporary, "rb") as written:
            os.fsync(written.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


class Taken(UserError):
    """Another process is at work in a folder."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes, also on machines that share the disk, out of a folder; `Taken` if one is in it already.

    The system lets go of the lock when a process ends, however it ends.
    """
    import fcntl

    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise Taken(
                f"{folder} is in use by {file.read().strip() or 'another process'}: wait for it to end"
            ) from None
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield


def current_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_text(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}") from None
    if not isinstance(value, dict):
        raise UserError(f"cannot read {path}: it holds no JSON object")
    return value
