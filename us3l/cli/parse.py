"""Command lines from dataclasses, by tyro."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TypeVar

import tyro

T = TypeVar("T")


def program() -> str:
    """How the user can call us3l again: by its path when its folder is not searched for commands."""
    return "us3l" if shutil.which("us3l") or not os.path.exists(sys.argv[0]) else os.path.relpath(sys.argv[0])


def parse(kind: type[T], command: str, arguments: list[str], default: T | None = None) -> T:
    """An instance of a dataclass from a command line; nested settings go by their bare names."""
    settings = (tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes)
    if default is None:
        return tyro.cli(kind, prog=f"us3l {command}", args=arguments, config=settings)
    return tyro.cli(kind, prog=f"us3l {command}", args=arguments, default=default, config=settings)
