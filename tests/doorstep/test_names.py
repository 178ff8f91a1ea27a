"""One name, one thing."""

import ast
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "us3l"
# Scripts for users, complete in themselves.
COPIED = {PACKAGE / "deploy" / name for name in ("example.py", "benchmark.py")}


def named(kind: type[ast.ClassDef] | type[ast.Assign], path: Path) -> list[str]:
    """What a module defines at its top: classes, or values, among them types that get a name."""
    nodes = [node for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, kind)]
    return [node.name if isinstance(node, ast.ClassDef) else ast.unparse(node.targets[0]) for node in nodes]


def test_a_class_has_its_name_alone():
    files = {*PACKAGE.rglob("*.py")} - COPIED
    classes = Counter(name for path in files for name in named(ast.ClassDef, path))
    assert [name for name, count in classes.items() if count > 1] == []
    assert {name for path in files for name in named(ast.Assign, path)} & {*classes} == set()


def test_a_test_file_has_its_name_alone():  # pytest cannot import two of one name
    names = Counter(path.name for path in Path(__file__).parents[1].rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
