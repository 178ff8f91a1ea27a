"""Reading and writing files: a reader never sees half of one, never waits for a pipe, and writing follows no link."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import socket
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard

from us3l.system.errors import UserError
from us3l.system.streams import one_line, printable

LARGEST_TEXT = 2**26  # bytes of a file of settings or results
LONGEST_LINE = 2**20
CACHE_VARIABLE = "US3L_CACHE"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path to write to; on success it is flushed to the disk and takes the place of `path`.

    Neither path is followed if it is a link. An error of the disk names `path`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{os.getpid()}.tmp.{path.name}")
    temporary.unlink(missing_ok=True)
    try:
        yield temporary
        os.chmod(temporary, 0o666 & ~current_umask())  # some libraries write files that only their owner may read
        with open(temporary, "rb") as written:
            os.fsync(written.fileno())
        os.replace(temporary, path)
    except OSError as error:
        if error.filename is None:  # as when the disk is full
            error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


class Taken(UserError):
    """Another process is at work in a folder."""


@contextmanager
def locked(folder: Path, patience: float = 0.0) -> Iterator[None]:
    """Keep other processes, also on machines that share the disk, out of a folder; `Taken` if one is in it already.

    The system lets go of the lock when a process ends, however it ends.

    Args:
        folder: Made if need be.
        patience: Seconds to wait for a process that is in it.
    """
    until = time.monotonic() + patience
    while True:
        try:
            lock = _lock(folder)
            break
        except Taken:
            if time.monotonic() >= until:
                raise
            time.sleep(0.05)
    with lock:
        yield


def _lock(folder: Path) -> BinaryIO:
    """Return the open lock of a folder; closing it lets go."""
    import fcntl

    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as opened:
        file = opened.enter_context(open_own(folder / ".lock", os.O_RDWR))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = one_line(file.read(200).decode(errors="replace").strip())
            raise Taken(f"{folder} is in use by {holder or 'another process'}: wait for it to end") from None
        os.register_at_fork(after_in_child=file.close)  # else reading workers would hold it after our end
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        file.flush()
        opened.pop_all()
    return file


def open_own(path: Path, flags: int) -> BinaryIO:
    """Open for writing, and make if need be, a regular file of a folder's own: never one that a link leads to."""
    try:
        descriptor = os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UserError(f"{path} is a link, which is not written to: put the file itself there") from None
        if error.errno in (errno.ENXIO, errno.EISDIR):  # a pipe that nobody reads
            raise UserError(f"cannot write {path}: it is not a regular file") from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UserError(f"cannot write {path}: it is not a regular file")
    return os.fdopen(descriptor, "r+b" if flags & os.O_RDWR else "ab")


def append_lines(path: Path, lines: list[str]) -> None:
    """Add lines to a file, each as one line, whatever characters are in it."""
    with open_own(path, os.O_WRONLY | os.O_APPEND) as file:
        file.writelines(printable(line).replace("\n", "\\n").encode() + b"\n" for line in lines)


def expanded(path: str | Path) -> Path:
    """Return the path with the home folder in the place of `~`, if there is one."""
    return Path(os.path.expanduser(path))


def cache_folder() -> Path | None:
    """Return where things are kept that can be made again: US3L_CACHE, else ~/.cache/us3l; None if that is "off"."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen == "off":
        return None
    folder = Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "us3l"
    try:
        return folder.expanduser()
    except RuntimeError:  # there is no home
        return None


def is_inside(folder: Path, path: Path) -> bool:
    """Return whether a path stays in a folder, wherever links lead; one that leads to itself stays."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def check_inside(folder: Path, path: Path) -> Path:
    """Return the path, unless links lead it out of the folder."""
    if not is_inside(folder, path):
        raise UserError(f"{path} leads out of {folder}: put the folder or file itself there, not a link")
    return path


def current_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8; bytes of names that are not UTF-8 are written as \\udcXX."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


def check_name(path: str | Path) -> None:
    """Raise a `UserError` if a path is not UTF-8: the library that reads models cannot open files there."""
    try:
        os.fspath(path).encode()
    except UnicodeEncodeError:
        raise UserError(f"{path} is not UTF-8, and models cannot be read from there: choose another `out`") from None


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, default=as_plain) + "\n")


def as_plain(value: Any) -> Any:
    """Return what a file holds for a value that says so itself, as a `Width` does: the `default` of `json.dumps`."""
    try:
        return value.as_plain()
    except AttributeError:
        raise TypeError(f"{type(value).__name__} is not a plain value") from None


def check_regular(path: Path) -> Path:
    """Return the path, if it is a regular file: reading from a pipe or a device might never end."""
    try:
        regular = stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    if not regular:
        raise UserError(f"cannot read {path}: it is not a regular file")
    return path


def open_regular(path: Path) -> io.BufferedReader:
    """Open a regular file for reading; anything else is a `UserError`."""
    try:
        return open(check_regular(path), "rb")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None


def read_bytes(path: Path, limit: int = LARGEST_TEXT) -> bytes:
    """Return all of a file that should be small; a larger one, or anything but a file, is a `UserError`."""
    try:
        with open_regular(path) as file:
            content = file.read(min(os.fstat(file.fileno()).st_size, limit) + 1)  # reading takes the memory asked for
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None
    if len(content) > limit:
        raise UserError(f"cannot read {path}: it is larger than {limit / 2**20:g} MiB")
    return content


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text of any length, with their ends; a mark replaces what is not UTF-8."""
    with open_regular(path) as file:
        while line := file.readline(LONGEST_LINE + 1):
            if len(line) > LONGEST_LINE:
                raise UserError(f"cannot read {path}: it has a line longer than {LONGEST_LINE / 2**20:g} MiB")
            yield line.decode(errors="replace")


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def parse_json(text: str | bytes) -> Any:
    """Return the value in JSON text; whatever is wrong, also nesting that is too deep, is a `ValueError`."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def finite(value: Any) -> TypeGuard[float]:
    """Return whether a value from a file is a number that arithmetic can be done with.

    >>> finite(0.5), finite(3), finite(True), finite(float("nan")), finite(10**400), finite("1")
    (True, True, False, False, False, False)
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file."""
    content = read_bytes(path)
    try:
        value = parse_json(content)
    except ValueError as error:
        raise UserError(f"cannot read {path}: {error}") from None
    if not isinstance(value, dict):
        raise UserError(f"cannot read {path}: it holds no JSON object")
    return value


def unused_path(path: Path) -> Path:
    """Return the path itself, or the first of path-2, path-3, ... that does not exist."""
    number, free = 2, path
    while free.exists():
        free, number = path.with_name(f"{path.name}-{number}"), number + 1
    return free
