"""Notices that the event loop stands still: then nobody is answered, and signals are not seen either."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

STILL = 30.0  # seconds
EVERY = 1.0


class LoopGuard:
    """A thread that expects a sign of life from an event loop, every second.

    It counts its own waits, not the clock: a process that was paused, and the loop with it, has not hung.

    Args:
        hung: Called once, in that thread, when there was none for long.
        still: Seconds that are long.
        every: Seconds between two signs.
    """

    def __init__(self, hung: Callable[[], None], still: float = STILL, every: float = EVERY) -> None:
        self._hung, self._patience, self._every = hung, max(2, round(still / every)), every
        self._missing = 0
        self._ended = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin; called by what runs in the loop."""
        self._loop = loop
        self._live()
        threading.Thread(target=self._work, name="us3l-serving-guard", daemon=True).start()

    def end(self) -> None:
        self._ended.set()

    def _live(self) -> None:
        self._missing = 0
        if self._loop is not None and not self._ended.is_set():
            self._loop.call_later(self._every, self._live)

    def _work(self) -> None:
        while not self._ended.wait(self._every):
            self._missing += 1
            if self._missing > self._patience:
                self._hung()
                return
