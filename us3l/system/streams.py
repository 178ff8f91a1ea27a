"""What leaves the process as text: names made harmless, and streams whose loss ends nothing.

Imports nothing heavy: every command starts with it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

PLAIN = str.maketrans({"±": "+/-", "…": "...", "→": "->"})


def printable(text: str) -> str:
    """Return the text with everything escaped that a terminal would obey instead of show, but line breaks and tabs.

    File names may hold anything: escape sequences, marks that turn the direction of writing, bytes that are not text.

    >>> printable("a\\x1b[2Jb.png")
    'a\\\\x1b[2Jb.png'
    """
    if text.isprintable():
        return text
    return "".join(
        letter
        if letter.isprintable() or letter in "\n\t" or unicodedata.category(letter) == "Zs"
        else letter.encode("unicode_escape", "surrogatepass").decode("ascii")
        for letter in text
    )


def one_line(text: str) -> str:
    """Return the text as one line that a terminal or a log can hold.

    >>> one_line("a name\\nwith  a line break\\x07")
    'a name with a line break\\\\x07'
    """
    return printable(" ".join(text.split()))


class Lasting:
    """A text stream that takes everything: letters it cannot show are escaped, and when it is gone, nothing happens."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        encoding = getattr(self.stream, "encoding", None) or "utf-8"
        try:
            text.encode(encoding)
        except UnicodeEncodeError:
            text = text.translate(PLAIN).encode(encoding, "backslashreplace").decode(encoding)
        self._try(lambda: self.stream.write(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        self._try(self.stream.flush)

    def _try(self, action: Callable[[], object]) -> None:
        try:
            action()
        except (OSError, ValueError) as error:
            self._lost(error)

    def _lost(self, error: Exception) -> None:
        """Send what is still to come nowhere, so that not even the interpreter's last flush complains."""
        if isinstance(error, OSError) and self.stream in (sys.__stdout__, sys.__stderr__):
            with suppress(OSError, ValueError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, self.stream.fileno())
                os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def lasting(stream: Any) -> Any:
    """Return the stream, guarded; None (there is none) and guarded ones stay as they are."""
    return stream if stream is None or isinstance(stream, Lasting) else Lasting(stream)


@contextmanager
def lasting_display() -> Iterator[None]:
    """Let neither a closed pipe nor a closed terminal end a command."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = map(lasting, before)
    main_thread = threading.current_thread() is threading.main_thread()
    hung_up = signal.signal(signal.SIGHUP, signal.SIG_IGN) if main_thread and hasattr(signal, "SIGHUP") else None
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        sys.stdout, sys.stderr = before
        if hung_up is not None:
            signal.signal(signal.SIGHUP, hung_up)
