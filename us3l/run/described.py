"""Tensors that say in their own file what they are: safetensors with a JSON text as metadata."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import safetensors
from torch import Tensor

from us3l.storage import write_tensors
from us3l.system.errors import UserError
from us3l.system.files import as_plain, check_regular, parse_json

METADATA = "us3l"
T = TypeVar("T")


def write_described(path: Path, tensors: Mapping[str, Tensor], described: dict[str, Any]) -> None:
    write_tensors(path, tensors, {METADATA: json.dumps(described, default=as_plain)})


def read_described(path: Path, build: Callable[[dict[str, Any], dict[str, Tensor]], T], what: str, remedy: str) -> T:
    """What a file holds.

    Args:
        path: The file.
        build: Makes the result of the description and the tensors; what it raises means that the file is damaged.
        what: The file should hold, for errors.
        remedy: What to do if there is no file.
    """
    if not path.exists():
        raise UserError(f"there is no file {path}: {remedy}")
    check_regular(path)
    try:
        with safetensors.safe_open(path, "pt") as file:
            described = parse_json(file.metadata()[METADATA])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dictionary)
        return build(described, tensors)
    except (OSError, safetensors.SafetensorError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"cannot read {path}: it is cut short, damaged or holds no {what} ({error})") from None
