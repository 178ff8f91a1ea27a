"""The commands in README and guides are commands that us3l understands."""

from __future__ import annotations

import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest

from us3l.commands.main import COMMANDS
from us3l.commands.parse import parse

ROOT = Path(__file__).parents[2]
COMMAND = re.compile(r"(?:^|(?<=[ /;`]))us3l (?=[a-z])([^`;&]+)")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def commands(page: Path) -> list[str]:
    """Return the commands in a page's blocks of code, without their comments."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    lines = [line for kind, block in blocks if not kind for line in block.replace("\\\n", " ").splitlines()]
    return [
        match[1]
        for line in lines
        if not line.startswith(("pip ", "docker ", "    us3l-", "upstream"))
        for match in COMMAND.finditer(line.split("  #")[0].split("   (")[0])
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_is_understood(page: Path) -> None:
    for text in commands(page):
        name, *words = shlex.split(text, comments=True)
        assert name in COMMANDS, text
        if "--backbone" in words and name != "pretrain":  # of all commands, `main` takes it away
            place = words.index("--backbone")
            words = words[:place] + words[place + 2 :]
        module = import_module(f"us3l.commands.{name}")
        try:
            parse(getattr(module, name).kind, name, words)
        except (Exception, SystemExit) as error:
            raise AssertionError(f"us3l {text}: {error}") from error


def test_there_are_such_commands() -> None:
    found = {text.split()[0] for page in PAGES for text in commands(page)}
    assert found >= {"pretrain", "evaluate", "export", "serve", "embed", "find", "predict", "search", "reproduce"}
