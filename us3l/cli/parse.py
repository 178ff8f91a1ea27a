"""Command lines from dataclasses, by tyro."""

from __future__ import annotations

import os
import re
import shutil
import sys
from dataclasses import is_dataclass
from pathlib import Path
from typing import TypeVar, get_type_hints

import tyro

T = TypeVar("T")


def program() -> str:
    """How the user can call us3l again: by its path when its folder is not searched for commands."""
    called = Path(sys.argv[0])
    searched = shutil.which("us3l") or called.name != "us3l"
    return "us3l" if searched else os.path.relpath(called)


WIDTHS = {"--width", "--widths", "--min-width", "--individual", "--fixed-widths"}
SYNONYMS = (("--width", "--widths"), ("--size", "--image-size"), ("--batch", "--batch-size"))


def parse(kind: type[T], command: str, arguments: list[str], default: T | None = None) -> T:
    """An instance of a dataclass from a command line; nested settings go by their bare names.

    Every command understands the same: see `plain`.
    """
    settings = (tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes)
    given = plain(arguments, flags(kind))
    if default is None:
        return tyro.cli(kind, prog=f"us3l {command}", args=given, config=settings)
    return tyro.cli(kind, prog=f"us3l {command}", args=given, default=default, config=settings)


def plain(arguments: list[str], known: set[str]) -> list[str]:
    """A command line with widths as numbers, and with the names of settings that the command itself uses.

    >>> plain(["runs/a", "--widths", "1x", "0.5x", "--size=32"], {"--width", "--image-size"})
    ['runs/a', '--width', '1', '0.5', '--image-size=32']
    """
    names = {name: other for pair in SYNONYMS for name, other in (pair, pair[::-1]) if name not in known}
    result, flag = [], ""
    for argument in arguments:
        before, equals, value = argument.partition("=")
        if argument.startswith("--"):
            flag = before.replace("_", "-")
            before = names[flag] if names.get(flag) in known else before
        else:
            before, equals, value = "", "", argument
        if flag in WIDTHS and re.fullmatch(r"\d*\.?\d+x", value):
            value = value.removesuffix("x")
        result.append(before + equals + value)
    return result


def flags(kind: type) -> set[str]:
    """The flags of a dataclass, nested ones included."""
    hints = get_type_hints(kind)
    nested = [flags(hint) for hint in hints.values() if is_dataclass(hint) and isinstance(hint, type)]
    return {"--" + name.replace("_", "-") for name in hints}.union(*nested)
