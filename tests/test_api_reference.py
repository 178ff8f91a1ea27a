from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any, Literal

import pytest

DOCS = Path(__file__).parents[1] / "docs"
Colour = Literal["red", "blue"]


@pytest.fixture(scope="module")
def build() -> dict[str, Any]:
    return runpy.run_path(str(DOCS / "build_api.py"))


def test_the_reference_is_up_to_date(build: dict[str, Any]) -> None:
    assert (DOCS / "api.md").read_text(encoding="utf-8") == build["reference"](), "run: make docs"


def test_everything_in_it_is_described(build: dict[str, Any]) -> None:
    for name, items in build["MODULES"].items():
        module = __import__(name, fromlist=["_"])
        for item in items:
            value = getattr(module, item)
            documented = value.__doc__ and not value.__doc__.startswith(f"{item}(")
            assert documented or list(build["fields_of"](value)), f"{name}.{item}"


def test_choices_are_told(build: dict[str, Any]) -> None:
    def mix(one: Colour, other: Colour | None = None) -> None: ...

    assert build["signature"](mix, "mix") == (
        "mix(one: Literal['red', 'blue'], other: Literal['red', 'blue'] | None = None)"
    )
    assert build["type_name"](Colour, {}) == "Literal['red', 'blue']"
    assert build["type_name"](Path | None, {}) == "Path | None"


def test_arguments_and_results_are_lists(build: dict[str, Any]) -> None:
    text = "Does it.\n\nArgs:\n    a: one\n        line.\n    b: two.\n\nReturns:\n    What\n    it is.\n\n>>> 1\n1"
    assert build["as_markdown"](text) == (
        "Does it.\n\n**Args**\n\n- `a`: one line.\n- `b`: two.\n\n**Returns:** What it is.\n\n```python\n>>> 1\n1\n```"
    )
