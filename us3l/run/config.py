"""Frozen dataclasses to YAML and back."""

from __future__ import annotations

import dataclasses
import math
import types
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from us3l.system.errors import UserError, did_you_mean
from us3l.system.files import read_bytes, write_text
from us3l.width import Width

LARGEST = 2**16  # bytes of a configuration
DEEPEST = 20
T = TypeVar("T")


def write_config(path: Path, config: Any) -> None:
    plain = dataclasses.asdict(config)
    write_text(path, yaml.safe_dump(to_lists(plain), sort_keys=False))


def read_config(path: Path, kind: type[T]) -> T:
    """The configuration in a file; unknown names and values of a wrong type are errors."""
    return build(kind, read_plain(path), str(path))


def read_plain(path: Path) -> Any:
    """The plain values in a YAML file, which may not be large."""
    content = read_bytes(path, LARGEST)
    try:
        return yaml.load(content.decode(), _Plain)
    except Exception as error:  # PyYAML raises nearly anything where a value is not what its tag says
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"cannot read {path}: {reason}") from None


class _Plain(yaml.SafeLoader):
    """Makes plain values, each of its own: by aliases, a small file can hold more than fits into any message."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) have no place in a configuration")
        self.depth += 1
        if self.depth > DEEPEST:
            raise yaml.YAMLError("it is nested too deeply")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def build(kind: Any, value: Any, where: str) -> Any:
    """`value`, as YAML gives it, as an instance of `kind`; `where` names it in errors."""
    origin, arguments = get_origin(kind), get_args(kind)
    if dataclasses.is_dataclass(kind) and isinstance(value, dict):
        hints = get_type_hints(kind)
        for name in value:
            if name not in hints:
                raise UserError(f"{where}: unknown setting {name!r}: {did_you_mean(name, hints)}")
        return kind(  # type: ignore[operator]
            **{name: build(hints[name], item, f"{where}: {name}") for name, item in value.items()}
        )
    if origin in (Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        errors = []
        for option in (option for option in arguments if option is not type(None)):
            try:
                return build(option, value, where)
            except UserError as error:
                errors.append(error)
        raise errors[-1]
    if origin is Literal and value in arguments:
        return value
    if origin is tuple and isinstance(value, list | tuple):
        kinds = arguments[:1] * len(value) if arguments[-1] is ... else arguments
        if len(kinds) != len(value):
            raise UserError(f"{where}: expected {len(kinds)} values, got {value!r:.80}")
        return tuple(build(kind, item, where) for kind, item in zip(kinds, value, strict=True))
    if kind is float and isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            number = float(value)  # YAML reads 1e-4 as a string
        except (ValueError, OverflowError):
            number = math.nan
        if math.isfinite(number):
            return number
    elif kind is Width and not isinstance(value, bool):
        try:
            width = Width(value)
        except UserError as error:
            raise UserError(f"{where}: {error}") from None
        if not all(map(math.isfinite, width.widths)):
            raise UserError(f"{where}: {value!r} is not a width: give a number, or one for each stage")
        return width
    elif isinstance(kind, type) and isinstance(value, kind) and not (kind is int and not _whole(value)):
        return value
    expected = " or ".join(map(repr, arguments)) if origin is Literal else getattr(kind, "__name__", str(kind))
    raise UserError(f"{where}: expected {expected}, got {value!r:.80}")


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def to_lists(value: Any) -> Any:
    """Tuples as lists, which is what YAML has."""
    if isinstance(value, dict):
        return {key: to_lists(item) for key, item in value.items()}
    return [to_lists(item) for item in value] if isinstance(value, list | tuple) else value
