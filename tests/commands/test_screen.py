"""The library names settings; only the command line names flags."""

import ast
import re
from pathlib import Path

import pytest

from us3l.commands.main import main
from us3l.commands.screen import as_typed

PACKAGE = Path(__file__).parents[2] / "us3l"
FLAG = re.compile(r"(^|[\s(`'\"])--[a-z]")
SCRIPT = PACKAGE / "deploy" / "benchmark.py"  # a command of its own, which bundles carry
LIBRARY = [
    path
    for path in sorted(PACKAGE.rglob("*.py"))
    if "commands" not in path.relative_to(PACKAGE).parts and path != SCRIPT
]


def strings(tree):
    """All but the docstrings, of which those of settings are shown as help."""
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node


@pytest.mark.parametrize("path", LIBRARY, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_the_library_names_no_flags(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert [node.value for node in strings(tree) if FLAG.search(node.value)] == []


@pytest.mark.parametrize(
    ("message", "typed"),
    [
        ("lower `lr` (0.1 now)", "lower --lr (0.1 now)"),
        ("set `skip_bad_steps=5`, `resume=True`", "set --skip-bad-steps 5, --resume"),
        ("`device='my laptop'`", "--device 'my laptop'"),
        ("`teacher=RUN`", "--teacher RUN"),
        ("`us3l.pretrain(out='runs/a', resume=True)` goes on", "us3l pretrain --out runs/a --resume goes on"),
        ("`us3l.data.datasets.download('pets', data_root='/data')`", "us3l download pets --data-root /data"),
        (
            "it's `us3l evaluate`, `IMG 1.jpg`, `signature(width)`",
            "it's `us3l evaluate`, `IMG 1.jpg`, `signature(width)`",
        ),
        ("`lr=1)`, `a=__import__('os')`", "`lr=1)`, `a=__import__('os')`"),
    ],
)
def test_settings_are_shown_as_they_are_typed(message, typed):
    assert as_typed(message) == typed


def test_errors_of_the_library_name_flags_on_the_screen(tmp_path, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("of the user")
    assert main(["pretrain", "digits", "--out", str(tmp_path / "run")]) == 2
    assert "choose another --out, or continue that run with --resume" in capsys.readouterr().err
