"""Stopping a long job in an orderly way."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Interrupted(Exception):
    """A long job was asked to stop, and its state is saved: the same call with `resume=True` continues it."""


@contextmanager
def stop_requests(tell: Callable[[str], None] | None = None) -> Iterator[Callable[[], bool]]:
    """Turn Ctrl-C and SIGTERM into a request that the loop honours after the step; a second Ctrl-C stops at once.

    `tell` is called with what to say about it at once.
    """
    asked: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False  # Python delivers signals to the main thread only
        return

    def ask(number: int, _: Any) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if tell and not asked:
            tell(f"{signal.Signals(number).name}: stopping after this step; Ctrl-C stops at once")
        asked.append(number)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
