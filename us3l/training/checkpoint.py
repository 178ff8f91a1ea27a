"""Checkpoints: the last two states of a run. Reading one never runs code."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from us3l.errors import UserError
from us3l.files import replacing

LAST, PREVIOUS = "last.pt", "previous.pt"


def save_checkpoint(folder: Path, state: dict[str, Any]) -> None:
    """Write the new state beside the last one, then let it take its place; the last becomes the previous."""
    with replacing(folder / LAST) as temporary:
        torch.save(state, temporary)
        if (folder / LAST).exists():
            # A link first and then a rename: at no moment is there no whole checkpoint under the name `last`.
            spare = folder / f".{PREVIOUS}.tmp"
            spare.unlink(missing_ok=True)
            os.link(folder / LAST, spare)
            os.replace(spare, folder / PREVIOUS)


def load_checkpoint(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """The newest whole checkpoint, and a message about each newer one that could not be read."""
    problems: list[str] = []
    for name in (LAST, PREVIOUS):
        path = folder / name
        if not path.exists():
            continue
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
            if not isinstance(state, dict) or not isinstance(state.get("step"), int):
                raise ValueError("it holds no training state")
            return state, problems
        except Exception as error:  # torch raises errors of many kinds on damaged files
            problems.append(f"cannot read {path}: {str(error).splitlines()[0]}")
    raise UserError("; ".join(problems) or f"there is no checkpoint in {folder}: start the run anew")
