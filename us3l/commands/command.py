"""A command: one frozen dataclass of settings, for the command line and for the Python function alike.

The file of a command has three parts: the dataclass, whose docstrings are the help; the function that does the work,
which `command` turns into the public one; and `main`, which prints. Nothing here imports torch.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from itertools import pairwise
from os import PathLike
from pathlib import Path
from textwrap import dedent, indent
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    ParamSpec,
    Protocol,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from us3l.run.config import build
from us3l.setting_types import ANYTHING, Asked, Model
from us3l.system.errors import UserError, did_you_mean
from us3l.width import Width

P = ParamSpec("P")
S = TypeVar("S")
S_contra = TypeVar("S_contra", contravariant=True)
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, kw_only=True)
class Command:
    """What all commands take."""

    progress: Asked = None
    """"silent" (the default), "lines", "live", or an object with the methods of `us3l.system.progress.Progress`."""


@dataclass(frozen=True)
class ModelCommand(Command):
    """What all commands take that use a model."""

    run: Model
    """A run's folder, or a model's."""


class Function(Protocol[P, S_contra, R_co]):
    """The public function of a command."""

    __name__: str
    kind: type[Any]
    """The dataclass of its settings, for the command line."""

    def with_settings(self, settings: S_contra, /) -> R_co:
        """Do the work with settings that are complete."""

    def __call__(self, *arguments: P.args, **settings: P.kwargs) -> R_co:
        """Do the work with settings by their names."""


def command(kind: Callable[P, S], line: type[Any] | None = None) -> Callable[[Callable[[S], R]], Function[P, S, R]]:
    """Make a function of settings by name from one that takes them as an object.

    Its signature is that of the dataclass, for type checkers too. Values are checked, and an unknown name is a
    `UserError`.

    Args:
        kind: The dataclass of the settings.
        line: One with more settings, which only the command line has.
    """

    def decorated(work: Callable[[S], R]) -> Function[P, S, R]:
        @wraps(work)
        def function(*arguments: Any, **settings: Any) -> R:
            return work(settings_of(kind, arguments, settings))

        about = function.__doc__ or ""
        signature = inspect.signature(kind).replace(return_annotation=inspect.signature(work).return_annotation)
        attributes = {
            "kind": line or kind,
            "with_settings": work,
            "__signature__": signature,
            "__doc__": f"{inspect.cleandoc(about)}\n\nArgs:\n{arguments_help(kind, signature.parameters)}",
        }
        for name, value in attributes.items():
            setattr(function, name, value)
        return cast(Function[P, S, R], function)

    return decorated


F = TypeVar("F", bound=Callable[..., Any])


def signed_by(kind: type[S], work: Callable[[S], Any]) -> Callable[[F], F]:
    """Give a dataclass to a function whose signature cannot be made from it, because it takes any number of runs.

    Its types are those of `us3l.commands.names`, which is made from the dataclass.

    Args:
        kind: The dataclass of the settings.
        work: What does the work.
    """

    def decorated(function: F) -> F:
        names = [name for name in inspect.signature(kind).parameters if name != "runs"]
        about = f"{inspect.cleandoc(function.__doc__ or '')}\n\nArgs:\n{arguments_help(kind, names)}"
        for name, value in {"kind": kind, "with_settings": work, "__doc__": about}.items():
            setattr(function, name, value)
        return function

    return decorated


def arguments_help(kind: Any, names: Iterable[str]) -> str:
    """Return the settings of a dataclass with their docstrings, as the "Args" of a function."""
    docs = field_docs(kind)
    return "\n".join(indent(f"{name}: {docs.get(name, '')}".rstrip(), "    ") for name in names)


def field_docs(kind: type[Any]) -> dict[str, str]:
    """Return the docstrings of a dataclass's fields, inherited ones included; none where there is no source."""
    docs: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not is_dataclass(base):
            continue
        try:
            (tree,) = ast.parse(dedent(inspect.getsource(base))).body
        except (OSError, TypeError):
            continue
        assert isinstance(tree, ast.ClassDef)
        for field, doc in pairwise(tree.body):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(doc, ast.Expr)
                and isinstance(doc.value, ast.Constant)
                and isinstance(doc.value.value, str)
            ):
                docs[ast.unparse(field.target)] = " ".join(doc.value.value.split())
    return docs


def settings_of(kind: Callable[..., S], arguments: Sequence[Any], settings: Mapping[str, Any]) -> S:
    """Return a dataclass of settings from what a Python program gives; wrong names and values are `UserError`s."""
    check_names(settings, [field.name for field in fields(cast(Any, kind))])
    values = inspect.signature(kind).bind(*arguments, **settings).arguments
    hints = get_type_hints(kind, include_extras=True)
    return kind(**{name: converted(hints[name], value, name) for name, value in values.items()})


def check_names(settings: Mapping[str, Any], names: Sequence[str]) -> None:
    """Raise a `UserError` if a setting has none of the names."""
    for name in settings:
        if name not in names:
            raise UserError(f"unknown setting {name!r}: {did_you_mean(name, sorted(names))}")


def converted(kind: Any, value: Any, name: str) -> Any:
    """Return a value as a setting's type has it: paths from texts, widths from names, several from one.

    >>> converted(tuple[int, ...], 8, "batch_size"), converted(Path | None, "photos", "out")
    ((8,), PosixPath('photos'))
    """
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0] if ANYTHING not in kind.__metadata__ else kind
    options = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    free = any(ANYTHING in getattr(option, "__metadata__", ()) for option in options)
    if free or (value is None and NoneType in options):
        return value
    literals = [text for option in options if get_origin(option) is Literal for text in get_args(option)]
    if isinstance(value, str) and value in literals:
        return value
    for option in options:
        if get_origin(option) is tuple:
            several = value if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
            return tuple(converted(get_args(option)[0], item, name) for item in several)
    if Path in options and isinstance(value, str | PathLike):
        return Path(value)
    if Width in options:
        return Width(value)
    return build(kind, value, name)
