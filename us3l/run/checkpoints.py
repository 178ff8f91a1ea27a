"""Checkpoints: the last two states of a run, each with a checksum. Reading one never runs code."""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path
from typing import Any

import torch

from us3l.storage import read_torch
from us3l.system.errors import UserError
from us3l.system.files import open_regular, replacing

LAST, PREVIOUS = "last.pt", "previous.pt"
MARK = b"\nus3l sha256 "
TRAILER = len(MARK) + 64


def save_checkpoint(folder: Path, state: dict[str, Any]) -> None:
    """Write the new state beside the last one, then let it take its place; the last becomes the previous."""
    buffer = io.BytesIO()  # torch.save to a file would hide why writing failed
    torch.save(state, buffer)
    with replacing(folder / LAST) as temporary:
        with open(temporary, "wb") as file:
            file.write(buffer.getbuffer())
            # Behind its end, so that the file is still one of torch's.
            file.write(MARK + hashlib.sha256(buffer.getbuffer()).hexdigest().encode())
        if (folder / LAST).exists():
            keep_previous(folder)


def keep_previous(folder: Path) -> None:
    """Let the last checkpoint also be the previous one."""
    # A link first and then a rename: at no moment is there no whole checkpoint under the name `last`.
    spare = folder / f".{PREVIOUS}.tmp"
    spare.unlink(missing_ok=True)
    try:
        os.link(folder / LAST, spare)
    except OSError:  # a disk without hard links: for a moment there is only the previous one
        spare = folder / LAST
    os.replace(spare, folder / PREVIOUS)


def has_checkpoint(folder: Path) -> bool:
    """Whether one was ever finished; a half-written one has another name."""
    return any((folder / name).exists() for name in (LAST, PREVIOUS))


def load_checkpoint(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """The newest whole checkpoint, and a message about each newer one that could not be read."""
    problems: list[str] = []
    for name in (LAST, PREVIOUS):
        path = folder / name
        if not path.exists():
            continue
        try:
            return read_state(path), problems
        except Exception as error:  # torch raises errors of many kinds on damaged files
            problems.append(f"cannot read {path}: {(str(error) or type(error).__name__).splitlines()[0]}")
    raise UserError("; ".join(problems) or f"there is no checkpoint in {folder}: start the run again")


def read_state(path: Path) -> dict[str, Any]:
    with open_regular(path) as file:
        content = file.read()
    trailer = content[-TRAILER:]
    # Files of earlier versions have none. Of a file that was cut torch misses the end.
    if trailer.startswith(MARK):
        digest = hashlib.sha256(memoryview(content)[:-TRAILER]).hexdigest()
        if trailer != MARK + digest.encode():
            raise ValueError("the checksum is wrong, so the file is damaged")
    state = read_torch(io.BytesIO(content))
    if not isinstance(state, dict) or not isinstance(state.get("step"), int):
        raise ValueError("it holds no training state")
    return state
