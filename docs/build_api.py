"""`make docs`: writes api.md beside this file, the reference of what is meant to be called from Python."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from textwrap import dedent
from typing import Any, Literal, get_origin

import us3l
import us3l.evaluation

PAGE = Path(__file__).with_name("api.md")
MODULES = {
    "us3l": list(us3l.__all__),
    "us3l.progress": ["Progress", "Count"],
    "us3l.stopping": ["Interrupted"],
    "us3l.data.sources": ["open_images", "load", "find", "ImageSet", "ImageFiles"],
    "us3l.data.preprocessing": ["Preprocessing"],
    "us3l.training.loop": ["pretrain"],
    "us3l.training.recipes": ["named", "Recipe", "Network", "Optimiser"],
    "us3l.objective.spec": ["Objective"],
    "us3l.objective.losses": ["unit", "nt_xent", "info_nce", "negative_cosine", "moco", "seed", "soft_cross_entropy"],
    "us3l.evaluation": list(us3l.evaluation.__all__),
    "us3l.run.evaluations": ["EvaluationRecord", "WidthResult", "Score"],
    "us3l.run.searches": ["SearchRecord", "FoundNetwork"],
    "us3l.deploy": [
        "Profiled",
        "Picked",
        "Exported",
        "Embedded",
        "Finding",
        "Predicted",
        "Predictions",
        "Published",
        "Adaptive",
        "Controller",
        "image_files",
    ],
    "us3l.run.embeddings": ["Embeddings", "read_embeddings"],
    "us3l.deploy.export": ["export"],
    "us3l.checkup.findings": ["Checkup", "Inventory", "DeviceCheck", "Measured", "Recommendation"],
    "us3l.paper.cases": ["case", "cases"],
}
HEAD = """# Python reference

Made from the docstrings by `make docs`; the tests run the examples, and fail when this page is not up to date.
The [README](../README.md) shows the usual way through.
"""


def reference() -> str:
    return "\n".join([HEAD, *(line for module in MODULES for line in section(module))])


def section(name: str) -> Iterator[str]:
    module = import_module(name)
    yield f"## `{name}`\n"
    for item in MODULES[name]:
        value = getattr(module, item)
        yield from entry(value, item, "###")
        if inspect.isclass(value):
            for method, function in vars(value).items():
                computed = getattr(function, "fget", None) or getattr(function, "func", None)  # of a property
                function = computed or getattr(function, "__func__", function)
                if inspect.isfunction(function) and not method.startswith("_") and function.__doc__:
                    yield from entry(function, f"{item}.{method}", "####", called=computed is None)


def entry(value: Any, name: str, level: str, called: bool = True) -> Iterator[str]:
    yield f"{level} `{name}`\n"
    if not called:
        yield f"```python\n{name}: {type_name(inspect.signature(value).return_annotation, {})}\n```\n"
    elif not (inspect.isclass(value) and (issubclass(value, Exception) or getattr(value, "_is_protocol", False))):
        yield f"```python\n{signature(value, name)}\n```\n"
    text = inspect.getdoc(value) or ""
    if not text.startswith(f"{name}("):  # what a dataclass has if it has no docstring
        yield f"{as_markdown(text).strip()}\n"
    if is_dataclass(value):
        yield "\n".join(f"- `{field}`: {' '.join(told.split())}" for field, told in fields_of(value)) + "\n"


def signature(value: Any, name: str) -> str:
    found = inspect.signature(value)
    names = vars(sys.modules[value.__module__])
    told = [parameter(one, names) for key, one in found.parameters.items() if key != "self"]
    call = f"{name}({', '.join(told)})"
    result = type_name(found.return_annotation, names)
    result = "" if found.return_annotation is found.empty or result == "None" else f" -> {result}"
    return call + result if len(call + result) < 110 else f"{name}(\n    " + ",\n    ".join(told) + f"\n){result}"


def parameter(one: inspect.Parameter, names: Mapping[str, Any]) -> str:
    name = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "") + one.name  # type: ignore[call-overload]
    told = name if one.annotation is one.empty else f"{name}: {type_name(one.annotation, names)}"
    if one.default is one.empty:
        return told
    default = "..." if "<factory>" in repr(one.default) else repr(one.default)  # of a dataclass
    return f"{told} = {default}"


def type_name(annotation: Any, names: Mapping[str, Any]) -> str:
    """An annotation as it is written, but without modules, and with its choices where a name stands for a `Literal`."""
    if not isinstance(annotation, str):
        return re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Za-z])", "", inspect.formatannotation(annotation))

    def with_choices(name: re.Match[str]) -> str:
        value = names.get(name[0])
        return type_name(value, names) if get_origin(value) is Literal else name[0]

    return re.sub(r"\b[A-Z]\w*", with_choices, annotation)


def fields_of(value: Any) -> Iterator[tuple[str, str]]:
    """Names and descriptions of a dataclass's fields: the strings below them."""
    body = ast.parse(inspect.getsource(value)).body[0].body  # type: ignore[attr-defined]
    for field, told in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(told, ast.Expr) and isinstance(told.value, ast.Constant):
            yield ast.unparse(field.target), str(told.value.value)


def as_markdown(text: str) -> str:
    """Examples in blocks of code; what is told of arguments and results as lists."""
    text = re.sub(r"^(Args|Returns|Yields|Raises):\n((?:(?: {4}.*)?(?:\n|$))+)", as_list, text, flags=re.M)
    return re.sub(
        r"((?:^>>> .*\n?)(?:^.+\n?)*)", lambda found: f"```python\n{found[1].rstrip()}\n```", text, flags=re.M
    )


def as_list(section: re.Match[str]) -> str:
    title, text = section.groups()
    entries = [" ".join(entry.split()) for entry in re.split(r"\n(?! )", dedent(text).strip())]
    if title in ("Returns", "Yields"):
        return f"**{title}:** {' '.join(entries)}\n\n"
    return f"**{title}**\n\n" + "\n".join(re.sub(r"^([\w*]+): ", r"- `\1`: ", entry) for entry in entries) + "\n\n"


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
