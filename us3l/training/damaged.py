"""Images that cannot be read: listed in the run's folder, and counted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from us3l.system.errors import UserError
from us3l.system.files import read_bytes, replacing


def note_damaged(path: Path, damaged: Iterable[str]) -> list[str]:
    """Add images to a list of damaged ones, a line each with the reason; returns all that are in it now."""
    known = read_bytes(path).decode(errors="surrogateescape").splitlines() if path.exists() else []
    everything = list(dict.fromkeys([*known, *(" ".join(line.split()) for line in damaged)]))
    if len(everything) > len(known):
        with replacing(path) as temporary:
            temporary.write_bytes("".join(f"{line}\n" for line in everything).encode(errors="surrogateescape"))
    return everything


def check_damaged(name: str, damaged: Sequence[str], limit: int) -> None:
    """A `UserError` when more images than allowed cannot be read."""
    if len(damaged) > limit:
        raise UserError(
            f"{name}: {len(damaged)} images cannot be read, such as {damaged[-1]}; repair or remove them, or allow "
            f"more than {limit} (`max_bad_images`)"
        )
