"""Progress of a job that counts images: a bar in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

PLAIN_EVERY = 10.0  # seconds between plain lines


class Counting:
    """Count up to `total`, or to what the first call of `so_far` says.

    >>> with Counting(Console(quiet=True), "embedding", 100) as counting:
    ...     counting.more(40)
    """

    def __init__(self, console: Console, what: str, total: int | None = None) -> None:
        self.console, self.what, self.total, self.done = console, what, total, 0
        self.started = self.last_line = time.monotonic()
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.bar = Progress(*columns, console=console, transient=True) if console.is_terminal else None
        self.task = self.bar.add_task(what, total=total) if self.bar else None

    def __enter__(self) -> Counting:
        if self.bar:
            self.bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self.bar:
            self.bar.stop()

    def more(self, count: int) -> None:
        self.so_far(self.done + count, self.total or self.done + count)

    def so_far(self, done: int, total: int) -> None:
        self.done, self.total = done, total
        if self.bar and self.task is not None:
            self.bar.update(self.task, completed=done, total=total)
        now = time.monotonic()
        if not self.bar and done and now - self.last_line > PLAIN_EVERY:
            self.last_line = now
            left = (now - self.started) * (total - done) / done
            self.console.print(f"{self.what}: {done}/{total}, {clock(left)} left", highlight=False)


def clock(seconds: float) -> str:
    """A duration for people.

    >>> clock(42), clock(130), clock(7300)
    ('42 s', '2 min 10 s', '2 h 1 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
