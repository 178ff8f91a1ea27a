"""What a model is: `model.json` in its folder, which comes last, so that a folder that has it is whole.

Without torch: whether a run is finished can be asked at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from us3l.system.errors import UserError
from us3l.system.files import read_json, write_json

NAME = "model.json"
FORMAT = 1


def holds_model(folder: Path) -> bool:
    """Return whether there is a whole model in a folder."""
    return (folder / NAME).is_file()


def write_description(folder: Path, description: dict[str, Any]) -> None:
    """Write the file.

    Args:
        folder: Of the model, whose other files are there already.
        description: Plain values.
    """
    write_json(folder / NAME, {"format": FORMAT, **description})


def read_description(folder: Path) -> dict[str, Any]:
    """Return what was written; that its values make sense is seen when the network is built.

    Args:
        folder: Of the model.

    Raises:
        UserError: There is no model, or it is of a version to come.
    """
    if not holds_model(folder):
        raise UserError(f"{folder} holds no model: there is no {NAME} in it")
    description = read_json(folder / NAME)
    if description.get("format") != FORMAT:
        raise UserError(f"{folder} has format {description.get('format')!r:.40}, but this us3l reads {FORMAT}")
    return description
