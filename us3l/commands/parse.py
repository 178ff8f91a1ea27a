"""Command lines from dataclasses, by tyro."""

from __future__ import annotations

import dataclasses
import io
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from contextvars import ContextVar
from dataclasses import Field, fields, is_dataclass, replace
from functools import reduce
from inspect import cleandoc
from operator import or_
from textwrap import wrap
from types import NoneType
from typing import Annotated, Any, TypedDict, TypeVar, get_args, get_type_hints

import tyro
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)

from us3l.commands.command import field_docs
from us3l.commands.screen import as_typed
from us3l.setting_types import PYTHON_ONLY, Positional, SettingsOf
from us3l.system.errors import UserError
from us3l.width import Width

T = TypeVar("T")
TYPES = ConstructorRegistry()


WIDTHS = {"--width", "--widths", "--min-width", "--individual", "--fixed-widths"}
SYNONYMS = (("--width", "--widths"), ("--size", "--image-size"), ("--batch", "--batch-size"))


ALL = "--help-all"
FEW = 3  # inherited settings that make a group of their own in the help
show_all: ContextVar[bool] = ContextVar("show_all", default=True)


def parse(kind: type[T], command: str, arguments: list[str]) -> T:
    """Return an instance of a dataclass from a command line; nested settings go by their bare names.

    Every command understands the same: see `plain`.
    """
    words = plain(["--help" if word == ALL else word for word in arguments], flags(kind))
    shown = show_all.set(ALL in arguments or not {"-h", "--help"} & {*arguments})
    try:
        with our_errors():
            return tyro.cli(
                kind,
                prog=f"us3l {command}",
                description=described(kind.__doc__ or ""),
                args=words,
                config=(tyro.conf.OmitArgPrefixes,),
                registry=TYPES,
            )
    finally:
        show_all.reset(shown)


@TYPES.struct_rule
def settings_group(info: StructTypeInfo) -> StructConstructorSpec | None:
    """Return the settings of a dataclass: its own before inherited ones, without those that only Python has.

    The help shows those that must be given and its own first, then those of each class that it inherits from.
    """
    kind = info.type
    if not (isinstance(kind, type) and is_dataclass(kind)):
        return None
    hints, docs = get_type_hints(kind, include_extras=True), typed_docs(kind)
    defaults = {field.name: default_of(field) for field in fields(kind)}
    specs, grouped = list[StructFieldSpec](), list[str]()
    for base in kind.__mro__:
        group: dict[str, Any] = {}
        for name in filter(defaults.__contains__, vars(base).get("__annotations__", ())):
            default, about = defaults.pop(name), getattr(hints[name], "__metadata__", ())
            if PYTHON_ONLY in about:
                continue
            if chosen := [mark for mark in about if isinstance(mark, SettingsOf)]:
                specs.append(StructFieldSpec(name, groups(chosen[0]), default))
                grouped.append(name)
            elif base is kind or default is tyro.MISSING_NONPROP:
                specs.append(StructFieldSpec(name, typed(hints[name], default, docs.get(name)), default))
            else:
                group[name] = typed(hints[name], default, docs.get(name))
        if len(group) < FEW:
            specs += [StructFieldSpec(name, hint, getattr(kind, name)) for name, hint in group.items()]
        else:
            members = {title(base): TypedDict(base.__name__, group, total=False)}  # type: ignore[operator]
            specs.append(StructFieldSpec(base.__name__, typed_dict(members), {}))

    def instance(**values: Any) -> Any:
        inherited = [values.pop(base.__name__) for base in kind.__mro__ if base.__name__ in values]
        chosen = {name: flat(values[name]) for name in grouped}
        return kind(**values | chosen | {name: value for group in inherited for name, value in flat(group).items()})

    return StructConstructorSpec(instance, tuple(specs))


def title(base: type) -> str:
    """Return what the help calls the settings of a class.

    >>> title(type("ServiceSettings", (), {})), title(type("DetectorTraining", (), {}))
    ('service', 'detector training')
    """
    return " ".join(re.findall("[A-Z][a-z]+", base.__name__.removesuffix("Settings"))).lower()


def typed(hint: Any, default: Any, doc: str | None, hidden: bool = False) -> Any:
    """Return a setting's type with its help; what its docstring says of the default is not said twice."""
    explained = default in (None, (), "", tyro.MISSING_NONPROP) or "(default" in (doc or "")
    words = " ".join(map(str, default)) if isinstance(default, tuple) else str(default)
    marks: list[Any] = [tyro.conf.arg(help=doc, help_behavior_hint="" if explained else f"(default: {words})")]
    for mark in getattr(hint, "__metadata__", ()):
        if isinstance(mark, Positional):
            marks += [tyro.conf.Positional, tyro.conf.arg(metavar=mark.shown)]
    return reduce(lambda kind, mark: Annotated[kind, mark], [*marks, *[tyro.conf.Suppress] * hidden], hint)


def groups(settings: SettingsOf) -> Any:
    """Return a dictionary type of settings that may all be left out, in one group for each dataclass."""
    members: dict[str, Any] = {}
    for value in settings.defaults:
        collect(value, settings.common, members)
    return typed_dict(members)


def typed_dict(members: Mapping[str, Any]) -> Any:
    """Return a dictionary type of groups by their titles."""
    return Annotated[TypedDict("Groups", members, total=False), tyro.conf.arg(name="")]  # type: ignore[operator]


def collect(value: Any, common: tuple[str, ...], members: dict[str, Any]) -> None:
    """Add the settings of a dataclass to `members` as a group, and those of dataclasses inside it as more groups."""
    hints, docs = get_type_hints(type(value), include_extras=True), typed_docs(type(value))
    group = {}
    for name, hint in hints.items():
        default = getattr(value, name)
        if is_dataclass(default):
            collect(default, common, members)
        else:
            group[name] = typed(hint, default, docs.get(name), hidden=not show_all.get() and name not in common)
    members[title(type(value))] = TypedDict(type(value).__name__, group, total=False)  # type: ignore[operator]


def typed_docs(kind: type) -> dict[str, str]:
    """Return the docstrings of a dataclass's fields with the names of settings as they are typed."""
    return {name: as_typed(text) for name, text in field_docs(kind).items()}


def flat(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of all groups by their bare names."""
    return {name: value for group in given.values() for name, value in group.items()}


def default_of(field: Field[Any]) -> Any:
    """Return the default of a dataclass's field, or what tyro knows a missing one by."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return tyro.MISSING_NONPROP if field.default is dataclasses.MISSING else field.default


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
    """Return the flags of a dataclass, those of groups of settings included."""
    names: set[str] = set()
    for name, hint in get_type_hints(kind, include_extras=True).items():
        chosen = [mark for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, SettingsOf)]
        names |= {inner for mark in chosen for value in mark.defaults for inner in bare_names(value)} or {name}
    return {"--" + name.replace("_", "-") for name in names}


def bare_names(value: Any) -> Iterator[str]:
    """Give the names of the settings of a dataclass, and of those inside it."""
    for field in fields(value):
        inner = getattr(value, field.name)
        yield from bare_names(inner) if is_dataclass(inner) else (field.name,)
