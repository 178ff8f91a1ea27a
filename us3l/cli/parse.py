"""Command lines from dataclasses, by tyro."""

from __future__ import annotations

from typing import TypeVar

import tyro

T = TypeVar("T")


def parse(kind: type[T], command: str, arguments: list[str], default: T | None = None) -> T:
    """An instance of a dataclass from a command line; nested settings go by their bare names."""
    settings = (tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes)
    if default is None:
        return tyro.cli(kind, prog=f"us3l {command}", args=arguments, config=settings)
    return tyro.cli(kind, prog=f"us3l {command}", args=arguments, default=default, config=settings)
