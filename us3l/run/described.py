"""Tensors that say in their own file what they are: safetensors with a declared record as metadata."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import safetensors
from torch import Tensor

from us3l.run.records import check_version, convert, plain, said
from us3l.storage import write_tensors
from us3l.system.errors import UserError
from us3l.system.files import check_regular, parse_json

METADATA = "us3l"
H = TypeVar("H")
T = TypeVar("T")


def write_described(path: Path, tensors: Mapping[str, Tensor], version: int, header: Any) -> None:
    """Write tensors with a header, which is a dataclass, and its version."""
    write_tensors(path, tensors, {METADATA: json.dumps({"version": version} | plain(header))})


def read_described(
    path: Path, version: int, kind: type[H], build: Callable[[H, dict[str, Tensor]], T], remedy: str
) -> T:
    """Return what a file holds.

    Args:
        path: The file.
        version: The one that is read.
        kind: The header's type.
        build: Makes the result of the header and the tensors; a `KeyError` or `ValueError` means a damaged file.
        remedy: What to do if there is no such file, or it is damaged.
    """
    if not path.exists():
        raise UserError(f"there is no file {path}: {remedy}")
    check_regular(path)

    def damaged(error: Exception) -> UserError:
        return UserError(f"cannot read {path}: it is cut short or damaged ({said(error)}); {remedy}")

    try:
        with safetensors.safe_open(path, "pt") as file:
            header = parse_json(file.metadata()[METADATA])
            found = header.get("version")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dictionary)
    except (OSError, safetensors.SafetensorError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise damaged(error) from None
    check_version(path, found, (version,), remedy)
    try:
        return build(convert(header, kind), tensors)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise damaged(error) from None
