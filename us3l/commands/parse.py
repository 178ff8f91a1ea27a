"""Command lines from dataclasses, by tyro."""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import is_dataclass, replace
from functools import reduce
from inspect import cleandoc
from operator import or_
from pathlib import Path
from textwrap import wrap
from types import NoneType
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from us3l.system.errors import UserError
from us3l.width import Width

T = TypeVar("T")
RunArgument = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
RunArguments = Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
TYPES = ConstructorRegistry()


def program() -> str:
    """How the user can call us3l again: by its path when its folder is not searched for commands."""
    called = Path(sys.argv[0])
    searched = shutil.which("us3l") or called.name != "us3l"
    return "us3l" if searched else os.path.relpath(called)


WIDTHS = {"--width", "--widths", "--min-width", "--individual", "--fixed-widths"}
SYNONYMS = (("--width", "--widths"), ("--size", "--image-size"), ("--batch", "--batch-size"))


def parse(kind: type[T], command: str, arguments: list[str], default: T | None = None) -> T:
    """An instance of a dataclass from a command line; nested settings go by their bare names.

    Every command understands the same: see `plain`.
    """
    settings = (tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes)
    words, about = plain(arguments, flags(kind)), described(kind.__doc__ or "")
    with our_errors():
        return tyro.cli(
            kind,
            prog=f"us3l {command}",
            description=about,
            args=words,
            default=tyro.MISSING_NONPROP if default is None else default,
            config=settings,
            registry=TYPES,
        )


@TYPES.primitive_rule
def optional(kind: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """What may be None is shown in the help as what else it is: `INT`, not `{None}|INT`. One can still type None."""
    others = tuple(choice for choice in get_args(kind.type) if choice is not NoneType)
    if len(others) == len(get_args(kind.type)):
        return None
    spec = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(reduce(or_, others), kind.markers))
    assert isinstance(spec, PrimitiveConstructorSpec)
    return replace(
        spec,
        instance_from_str=lambda words: None if words == ["None"] else spec.instance_from_str(words),
        is_instance=lambda value: value is None or spec.is_instance(value),
        str_from_instance=lambda value: ["None"] if value is None else spec.str_from_instance(value),
        choices=spec.choices and (*spec.choices, "None"),
    )


@TYPES.primitive_rule
def width(kind: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """A number, or the name of a sub-network."""
    known, shown = (lambda value: isinstance(value, Width)), (lambda value: [f"{value:g}"])
    spec = PrimitiveConstructorSpec(1, "WIDTH", lambda words: Width(words[0]), known, shown)
    return spec if kind.type is Width else None


@contextmanager
def our_errors() -> Iterator[None]:
    """What our own checks of settings say comes as our error; tyro, which takes it for its own, puts it into a box."""
    said = io.StringIO()
    try:
        with redirect_stderr(said):
            yield
    except SystemExit as stop:
        error: BaseException | None = stop
        while error is not None and not isinstance(error, UserError):
            error = error.__context__
        if error is not None:
            raise error from None
        sys.stderr.write(said.getvalue())
        raise


def described(text: str, columns: int = 80) -> str:
    """A command's docstring for the screen: paragraphs filled, and examples that are too long continued.

    >>> print(described("One.\\n\\n    examples:\\n      us3l recipes --and more", 20))
    One.
    <BLANKLINE>
    examples:
      us3l recipes \\
          --and more
    """
    filled = []
    for paragraph in cleandoc(text).split("\n\n"):
        if paragraph.startswith("examples:"):
            lines = paragraph.split("\n")[1:]
            cut = [wrap(line.strip(), columns - 4, break_on_hyphens=False, subsequent_indent="    ") for line in lines]
            filled.append("\n  ".join(["examples:", *(" \\\n  ".join(parts) for parts in cut)]))
        else:
            indent = "  " if filled else ""  # tyro joins lines that begin with a letter
            lines = wrap(paragraph, columns, break_on_hyphens=False, initial_indent=indent, subsequent_indent="  ")
            filled.append("\n".join(lines))
    return "\n\n".join(filled)


def plain(arguments: list[str], known: set[str]) -> list[str]:
    """A command line with widths as numbers, and with the names of settings that the command itself uses.

    >>> plain(["runs/a", "--widths", "1x", "0.5x", "--size=32"], {"--width", "--image-size"})
    ['runs/a', '--width', '1', '0.5', '--image-size=32']
    """
    names = {name: other for pair in SYNONYMS for name, other in (pair, pair[::-1]) if name not in known}
    result, flag = [], ""
    for argument in arguments:
        before, equals, value = argument.partition("=")
        if argument.startswith("--"):
            flag = before.replace("_", "-")
            before = names[flag] if names.get(flag) in known else before
        else:
            before, equals, value = "", "", argument
        if flag in WIDTHS and re.fullmatch(r"[\d.][\d.dex-]*", value):
            value = value.removesuffix("x")
            Width(value)  # which says in one line what tyro would say in a box
        result.append(before + equals + value)
    return result


def flags(kind: type) -> set[str]:
    """The flags of a dataclass, nested ones included."""
    hints = get_type_hints(kind)
    nested = [flags(hint) for hint in hints.values() if is_dataclass(hint) and isinstance(hint, type)]
    return {"--" + name.replace("_", "-") for name in hints}.union(*nested)
