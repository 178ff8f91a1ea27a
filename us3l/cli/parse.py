"""Command lines from dataclasses, by tyro."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TypeVar

import tyro

T = TypeVar("T")


def program() -> str:
    """How the user can call us3l again: by its path when its folder is not searched for commands."""
    called = Path(sys.argv[0])
    searched = shutil.which("us3l") or called.name != "us3l"
    return "us3l" if searched else os.path.relpath(called)


def parse(kind: type[T], command: str, arguments: list[str], default: T | None = None) -> T:
    """An instance of a dataclass from a command line; nested settings go by their bare names."""
    settings = (tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes)
    if default is None:
        return tyro.cli(kind, prog=f"us3l {command}", args=arguments, config=settings)
    return tyro.cli(kind, prog=f"us3l {command}", args=arguments, default=default, config=settings)
