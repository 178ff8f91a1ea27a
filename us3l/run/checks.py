"""What every reader of a run's files asks of them."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path
from typing import Any

from us3l.system.errors import UserError


def check_version(path: Path, found: Any, known: Container[Any], newest: int) -> None:
    """That a file is of a version that this us3l reads.

    Args:
        path: The file, for the message.
        found: The version that it names.
        known: Those that are read.
        newest: The one that is written.

    Raises:
        UserError: It is not.
    """
    if found not in known:
        raise UserError(f"{path} has format {found!r:.40}, but this us3l reads {newest}: use a newer one")


def demand(good: bool, name: str, value: Any) -> None:
    """A `ValueError` about a value that is not good; the reader says in which file."""
    if not good:
        raise ValueError(f"{name} cannot be {value!r:.60}")
