"""Writing files so that a reader never sees half of one."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeGuard

from us3l.errors import UserError

LARGEST_TEXT = 2**26  # bytes of a file of settings or results


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
        os.register_at_fork(after_in_child=file.close)  # else reading workers would hold it after our end
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


def read_bytes(path: Path, limit: int = LARGEST_TEXT) -> bytes:
    """All of a file that is expected to be small; another one, or what is no file at all, is a `UserError`."""
    try:
        if path.exists() and not path.is_file():  # reading from a pipe or a device might never end
            raise UserError(f"cannot read {path}: it is no file")
        with open(path, "rb") as file:
            content = file.read(min(os.fstat(file.fileno()).st_size, limit) + 1)  # reading takes the memory asked for
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None
    if len(content) > limit:
        raise UserError(f"cannot read {path}: it is larger than {limit / 2**20:g} MiB")
    return content


def parse_json(text: str | bytes) -> Any:
    """The value in JSON text; whatever is wrong with it, also that it is nested too deeply, is a `ValueError`."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def finite(value: Any) -> TypeGuard[float]:
    """Whether a value from a file is a number that arithmetic can be done with.

    >>> finite(0.5), finite(3), finite(True), finite(float("nan")), finite(10**400), finite("1")
    (True, True, False, False, False, False)
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    content = read_bytes(path)
    try:
        value = parse_json(content)
    except ValueError as error:
        raise UserError(f"cannot read {path}: {error}") from None
    if not isinstance(value, dict):
        raise UserError(f"cannot read {path}: it holds no JSON object")
    return value
