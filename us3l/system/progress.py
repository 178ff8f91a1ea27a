"""Progress of long jobs: one small protocol, and its implementations.

`SILENT` shows nothing. A `Screen` prints lines, and in a terminal draws bars. Anything else with the two methods of
`Progress` will do as well, such as a window of your own program.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Protocol

from us3l.system.streams import printable

if TYPE_CHECKING:
    from rich.console import Console

PLAIN_EVERY = 10.0  # seconds between plain lines
Told = Literal["silent", "lines", "live"]
Advance = Callable[[int], None]
"""Called with the number of newly finished items."""


class Count(Protocol):
    """A job that counts: images, networks, steps."""

    def more(self, count: int) -> None:
        """Add newly finished items."""

    def so_far(self, done: int, total: int) -> None:
        """Say how many items are finished, and of how many."""


class Progress(Protocol):
    """Where a long job reports to while it works."""

    def say(self, text: str, style: str | None = None) -> None:
        """Show a message that stays; `style` is one of rich's, such as "yellow" for a warning."""

    def counting(self, what: str, total: int | None = None) -> AbstractContextManager[Count]:
        """Count up to `total`, or to the total that the first call of `so_far` names."""


class _Silent:
    """Shows nothing."""

    def say(self, text: str, style: str | None = None) -> None:
        pass

    def counting(self, what: str, total: int | None = None) -> AbstractContextManager[Count]:  # noqa: ARG002
        return self

    def more(self, count: int) -> None:
        pass

    def so_far(self, done: int, total: int) -> None:
        pass

    def __repr__(self) -> str:  # as the Python reference shows it, the same each time
        return "SILENT"

    def __enter__(self) -> _Silent:
        return self

    def __exit__(self, *_: object) -> None:
        pass


SILENT: Progress = _Silent()


class Screen:
    """Prints to a console: bars in a terminal, a line now and then elsewhere."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def say(self, text: str, style: str | None = None) -> None:
        self.console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    def counting(self, what: str, total: int | None = None) -> AbstractContextManager[Count]:
        return Counting(self.console, what, total)


def progress_of(asked: Progress | Told | None) -> Progress:
    """Return the progress that a caller asked for.

    Args:
        asked: "silent" or None, "lines", "live" (bars where there is a terminal), or an object of your own.

    >>> progress_of(None) is progress_of("silent")
    True
    """
    from us3l.system.errors import UserError

    if asked is None or asked == "silent":
        return SILENT
    if asked in ("lines", "live"):
        from us3l.system.console import Console

        return Screen(Console(force_terminal=False if asked == "lines" else None))
    if isinstance(asked, str):
        raise UserError(f"progress={asked!r} must be 'silent', 'lines', 'live', or an object with say and counting")
    return asked


class Counting:
    """Count on a console up to `total`, or to what the first call of `so_far` says.

    >>> from rich.console import Console
    >>> with Counting(Console(quiet=True), "embedding", 100) as counting:
    ...     counting.more(40)
    """

    def __init__(self, console: Console, what: str, total: int | None = None) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar
        from rich.table import Column

        self.console, self.what, self.total, self.done = console, what, total, 0
        self.started = self.last_line = time.monotonic()
        columns = (
            TextColumn("{task.description}", markup=False, table_column=Column()),  # wraps, so that no number is cut
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
        )
        self.bar = Bar(*columns, console=console, transient=True) if redraws(console) else None
        self.task = self.bar.add_task(printable(what), total=total, rate="") if self.bar else None

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
        now = time.monotonic()
        rate = f"{done / max(now - self.started, 1e-3):.3g} per s"
        if self.bar and self.task is not None:
            self.bar.update(self.task, completed=done, total=total, rate=rate)
        if not self.bar and done and now - self.last_line > PLAIN_EVERY:
            self.last_line = now
            left = (now - self.started) * (total - done) / done
            self.console.print(
                f"{self.what}: {done}/{total}, {rate}, {clock(left)} left",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )


def redraws(console: Console) -> bool:
    """Return whether printed lines can be drawn again: in a terminal, unless it says TERM=dumb."""
    return console.is_terminal and not console.is_dumb_terminal


def clock(seconds: float) -> str:
    """Return a duration for people.

    >>> clock(42), clock(130), clock(7300)
    ('42 s', '2 min 10 s', '2 h 1 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
