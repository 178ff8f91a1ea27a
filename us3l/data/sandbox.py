"""Decoding in child processes of limited memory and time: a file that kills or stalls one of them is a damaged image.

For files from people you do not trust: US3L_SANDBOX=1. What it costs, and what it does not do, is in docs/security.md.
"""

from __future__ import annotations

import atexit
import os
import signal
import struct
import subprocess
import sys
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np

from us3l.data.decode import Damaged, decode_here, measure_here
from us3l.system.errors import UserError

VARIABLE = "US3L_SANDBOX"
MEMORY = 2**31
"""Bytes of address space of a child: twice what the largest image that is accepted takes."""
SECONDS = 20
"""For one image."""

REQUEST = struct.Struct("<?qqq")  # whether a path follows, the side of the square or 0, by, the bytes that follow
REPLY = struct.Struct("<qqq")  # height, width, the number of bytes that follow: pixels, or if both are 0 what is wrong
ONLY_MEASURE = 0  # instead of `by`
READY = b"+"


def wanted() -> bool:
    """Whether the environment asks for it."""
    value = os.environ.get(VARIABLE, "0")
    if value not in ("0", "1"):
        raise UserError(f"{VARIABLE} must be 1 to decode images in limited processes, or 0, not {value!r}")
    return value == "1"


def decode_in_child(encoded: Path | bytes, size: int | None, by: int = 1) -> np.ndarray:
    """What `us3l.data.decode.decode_here` does, done by a child that is free, or by a new one.

    Args:
        encoded: An image file, or its bytes.
        size: Side of the square to make of it; None leaves the image as it is.
        by: See `us3l.data.decode.decode`.

    Returns:
        Its pixels, H x W x 3, uint8.

    Raises:
        Damaged: The image cannot be used, or took the child more memory or time than it has.
    """
    height, width, pixels = _ask(encoded, size, by)
    return np.frombuffer(pixels, np.uint8).reshape(height, width, 3)


def measure_in_child(encoded: Path | bytes) -> tuple[int, int]:
    """What `us3l.data.decode.measure_here` does, as above."""
    height, width, _ = _ask(encoded, None, ONLY_MEASURE)
    return height, width


def _ask(encoded: Path | bytes, size: int | None, by: int) -> tuple[int, int, bytearray]:
    free = _free[os.getpid()]
    child = free.pop() if free else Child()
    try:
        return child.ask(encoded, size, by)
    finally:
        if child.process.returncode is None:
            free.append(child)


class Child:
    """A process that decodes one image after another."""

    def __init__(self) -> None:
        here = str(Path(__file__).parents[2])  # so that it imports the same us3l, and nothing from the current folder
        path = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "us3l.data.sandbox"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"},
            pipesize=2**20,  # where the system can: most images go through at once
            start_new_session=True,  # Ctrl-C is for us, who still need what it decodes
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.requests, self.replies = self.process.stdin, self.process.stdout
        if self.replies.read(1) != READY:
            self.close()
            raise UserError(f"{VARIABLE}: the process that decodes images does not start; unset it to do without")

    def ask(self, encoded: Path | bytes, size: int | None = None, by: int = 1) -> tuple[int, int, bytearray]:
        """Height, width and pixels of an image; without the pixels, if it is only to be measured."""
        content = os.fsencode(os.path.abspath(encoded)) if isinstance(encoded, Path) else encoded
        try:
            self.requests.write(REQUEST.pack(isinstance(encoded, Path), size or 0, by, len(content)))
            self.requests.write(content)
            self.requests.flush()
            height, width, length = REPLY.unpack(self.replies.read(REPLY.size))
            reply = bytearray(self.replies.read(length))
            if len(reply) != length:
                raise EOFError
        except (OSError, EOFError, struct.error):
            raise Damaged(self.end()) from None
        except BaseException:
            self.close()
            raise
        if height == 0:
            raise Damaged(reply.decode(errors="replace"))
        return height, width, reply

    def end(self) -> str:
        """Why it ended."""
        self.close()
        if self.process.returncode == -signal.SIGALRM:
            return f"decoding takes more than {SECONDS} s"
        return f"the process that decoded it ended with code {self.process.returncode}"

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.requests, self.replies):
            with suppress(OSError):  # what could not be sent
                pipe.close()


_free: defaultdict[int, list[Child]] = defaultdict(list)
"""Of this process, by its id: a forked one must not use those of another."""


@atexit.register
def _close_all() -> None:
    for child in _free[os.getpid()]:
        child.close()


def main(requests: BinaryIO, replies: BinaryIO) -> None:
    """The child: reads requests and writes replies until there are none."""
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    replies.write(READY)
    replies.flush()
    while header := requests.read(REQUEST.size):
        is_path, size, by, length = REQUEST.unpack(header)
        content = requests.read(length)
        encoded = Path(os.fsdecode(content)) if is_path else content
        signal.setitimer(signal.ITIMER_REAL, SECONDS)  # its signal ends the process
        try:
            if by == ONLY_MEASURE:
                replies.write(REPLY.pack(*measure_here(encoded), 0))
            else:
                pixels = decode_here(encoded, size or None, by)
                replies.write(REPLY.pack(*pixels.shape[:2], pixels.nbytes))
                replies.write(np.ascontiguousarray(pixels).data)
        except Damaged as error:
            needs = isinstance(error.__cause__, MemoryError)
            told = (f"decoding takes more than {MEMORY / 2**30:g} GiB" if needs else str(error)).encode()
            replies.write(REPLY.pack(0, 0, len(told)) + told)
        signal.setitimer(signal.ITIMER_REAL, 0)
        replies.flush()


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)
