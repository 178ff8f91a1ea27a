"""What the commands print: the library names settings and calls, which become what one types."""

from __future__ import annotations

import ast
import os
import re
import shutil
import sys
from pathlib import Path
from shlex import quote

from us3l.system.console import Console
from us3l.system.progress import Screen

SETTING = re.compile(r"`([a-z][a-z0-9_]*)(?:=([^`]+))?`")
CALL = re.compile(r"`(us3l\.[a-z.]+\([^`]*\))`")


def program() -> str:
    """How the user can call us3l again: by its path when its folder is not searched for commands."""
    called = Path(sys.argv[0])
    searched = shutil.which("us3l") or called.name != "us3l"
    return "us3l" if searched else os.path.relpath(called)


class CommandScreen(Screen):
    """A console that shows settings as flags."""

    console: Console

    def __init__(self) -> None:
        super().__init__(Console())

    def say(self, text: str, style: str | None = None) -> None:
        super().say(as_typed(text), style)


def as_typed(text: str) -> str:
    """A message of the library with its settings and calls, which stand in backquotes, as one types them.

    >>> as_typed("choose another `out`, set `resume=True` or `precision='bf16-mixed'`")
    'choose another --out, set --resume or --precision bf16-mixed'
    >>> as_typed("`us3l.evaluate('my runs/a', data=DATA, widths=(1, 0.5))` makes it")
    "us3l evaluate 'my runs/a' --data DATA --widths 1 0.5 makes it"
    """
    text = CALL.sub(lambda call: command_line(call[1]) or call[0], text)
    return SETTING.sub(lambda found: command_line(f"us3l({found[1]}={found[2] or True})") or found[0], text)


def command_line(code: str) -> str | None:
    """A call, or settings in the form of one, as words of a command line; None if it cannot be understood."""
    try:
        call = ast.parse(code, mode="eval").body
        if not isinstance(call, ast.Call):
            return None
        words = [program(), call.func.attr] if isinstance(call.func, ast.Attribute) else []
        words += [word(value) for value in call.args]
        for setting in call.keywords:
            value = word(setting.value)
            words += [f"--{setting.arg}".replace("_", "-"), *([value] if value != "True" else [])]
    except (SyntaxError, ValueError):
        return None
    return " ".join(words)


def word(value: ast.expr) -> str:
    """A value as it is typed; a name in capitals stands for one."""
    if isinstance(value, ast.Name):
        return value.id
    found = ast.literal_eval(value)
    return " ".join(map(str, found)) if isinstance(found, tuple | list) else quote(str(found))
