"""The one kind of console that us3l prints with: names are shown as they are, and a lost display ends nothing."""

from __future__ import annotations

from typing import IO, Any

import rich.console
from rich.text import Text

from us3l.system.streams import lasting, printable


class Console(rich.console.Console):
    """rich's console without markup, emoji codes or highlighting: `[bold]` or `:cat:` in a name is the name.

    >>> from io import StringIO
    >>> console = Console(file=StringIO())
    >>> console.say("cats [red] \\x1b[2J")
    >>> console.file.getvalue()
    'cats [red] \\\\x1b[2J\\n'
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, "highlight": False} | options)

    @property
    def file(self) -> IO[str]:
        return lasting(rich.console.Console.file.fget(self))  # type: ignore[attr-defined]

    @file.setter
    def file(self, new: IO[str]) -> None:
        rich.console.Console.file.fset(self, new)  # type: ignore[attr-defined]

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)

    def say(self, text: str, style: str | None = None) -> None:
        """Print a line that is as long as it is, so that paths in it can be copied."""
        self.print(text, style=style, soft_wrap=True)
