"""Imports point one way: see docs/contributing.md."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "us3l"
CORE = {
    "calibration", "costs", "description", "families", "setting_types", "skeletons", "slimmable", "sorting",
    "storage", "switchable", "tensors", "width",
}  # fmt: skip
MAY_IMPORT = {
    "builtin": set(),
    "hub": {"builtin"},
    "objective": {"distributed"},
    "distributed": set(),
    "data": {"distributed"},
    "run": {"data", "hub"},
    "evaluation": {"data", "run"},
    "detection": {"data", "evaluation", "run"},
    "runtime": {"collection", "data", "deploy", "hub", "run"},
    "deploy": {"collection", "data", "evaluation", "hub", "run", "runtime"},
    "collection": {"data", "deploy", "evaluation", "run", "runtime"},
    "serving": {"collection", "data", "deploy", "hub", "reporting", "run", "runtime"},
    "searching": {"data", "deploy", "evaluation", "run"},
    "training": {"data", "distributed", "evaluation", "hub", "objective", "run"},
    "checkup": {"data", "distributed", "evaluation", "training"},
    "reporting": {
        "collection", "data", "deploy", "detection", "evaluation", "objective", "paper", "run", "runtime", "training",
    },
    "paper": {"data", "detection", "evaluation", "objective", "run", "training"},
}  # fmt: skip
"""What each room may import beside `system`, the core and itself. `system` imports only itself, the core only itself
and `system`; only `commands` imports everything."""


def imported(path: Path) -> set[str]:
    """The rooms of us3l that a file imports, at its top or later, but for types."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    names = [a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports are not seen here"
            assert node.module
            names += [f"us3l.{a.name}" for a in node.names] if node.module == "us3l" else [node.module]
    return {name.split(".")[1] for name in names if name.startswith("us3l.") and name != "us3l.__version__"}


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path):
    room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if room in ("commands", "__init__", "__main__"):
        return
    core = CORE | {"system"}
    allowed = {"system"} if room == "system" else core if room in CORE else core | MAY_IMPORT[room] | {room}
    assert imported(path) <= allowed


@pytest.mark.parametrize(
    "line",
    [
        "import us3l.commands",
        "from us3l import commands",
        "from us3l.commands.evaluate import evaluate",
        "from .commands import x",
    ],
)
def test_a_wrong_import_is_seen_wherever_it_stands(line, tmp_path):
    path = tmp_path / "width.py"
    path.write_text(f"def late():\n    {line}\n")
    if line.startswith("from ."):
        with pytest.raises(AssertionError, match="relative"):
            imported(path)
    else:
        assert imported(path) == {"commands"}


def prints(path: Path) -> bool:
    calls = (node.func for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call))
    return any(isinstance(function, ast.Name) and function.id == "print" for function in calls)


def test_only_commands_print():
    printing = {path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py") if prints(path)}
    assert {path for path in printing if path.parts[0] != "commands"} == {
        Path("deploy/example.py"),
        Path("deploy/benchmark.py"),
    }  # scripts for users
