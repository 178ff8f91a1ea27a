"""One name, one thing."""

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "us3l"
COPIED = PACKAGE / "deploy" / "example.py"  # a script for users, complete in itself


def defined(path: Path) -> Iterator[tuple[str, str]]:
    """The classes of a module, and the types that it gives a name, each with what it is."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            yield node.name, str(path)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name[0].isupper() and not name.isupper():
                yield name, ast.unparse(node.value)


def test_no_two_classes_have_one_name():
    found: dict[str, set[str]] = {}
    for path in {*PACKAGE.rglob("*.py")} - {COPIED}:
        for name, what in defined(path):
            found.setdefault(name, set()).add(what)
    assert {name: what for name, what in found.items() if len(what) > 1} == {}
