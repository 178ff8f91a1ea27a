"""What `make docs` would refuse, found without its tools."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import yaml

from tests.test_imports import CORE, MAY_IMPORT

DOCS = Path(__file__).parents[2] / "docs"
PACKAGE = DOCS.parent / "us3l"
HOOKS = runpy.run_path(str(DOCS / "mkdocs_hooks.py"))


def test_the_site_leads_to_every_page() -> None:
    settings = yaml.safe_load((DOCS.parent / "mkdocs.yml").read_text())
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")} | set(HOOKS["PAGES"].values())
    assert sorted(leaves(settings["nav"])) == sorted(pages), "bring nav in mkdocs.yml up to date"


def test_links_out_of_the_folder_become_links_of_the_site() -> None:
    convert = HOOKS["with_links_of_the_site"]
    assert convert("[a](../README.md#x) [b](data.md) ![c](images/c.png)", "docs") == (
        "[a](index.md#x) [b](data.md) ![c](images/c.png)"
    )
    assert (
        convert("[a](docs/data.md), [b](#here), [c](https://x.org)", "")
        == "[a](data.md), [b](#here), [c](https://x.org)"
    )


def test_the_map_for_contributors_is_that_of_the_package() -> None:
    page = (DOCS / "contributing.md").read_text(encoding="utf-8")
    rooms = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert rooms <= set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)), "a room is missing from the map"
    walks = page.split("## Four walks")[1].split("## Rules")[0]
    paths = re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.py)`", walks)
    missing = [path for path in paths if not (PACKAGE / path).exists() and not (DOCS.parent / path).exists()]
    assert missing == [], "modules that the walks and the ways to add name"


def test_the_arrows_of_the_map_are_imports_that_are_allowed() -> None:
    page = (DOCS / "contributing.md").read_text(encoding="utf-8")
    (picture,) = re.findall(r"```mermaid\n(.*?)```", page, re.DOTALL)
    arrows = re.findall(r"^ +([\w &]+?) (<?-->) ([\w &]+)$", picture, re.MULTILINE)
    assert arrows
    for sources, arrow, targets in arrows:
        for source in sources.split(" & "):
            for target in targets.split(" & "):
                pairs = [(source, target)] + [(target, source)] * (arrow == "<-->")
                assert all(may_import(*pair) for pair in pairs), f"{source} {arrow} {target}"


def may_import(room: str, other: str) -> bool:
    """Whether the table of imports allows it."""
    if room == "commands":
        return True
    core = {"core", "system"} | CORE
    return other in (core if room == "core" else core | MAY_IMPORT[room])


def leaves(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [leaf for one in (value.values() if isinstance(value, dict) else value) for leaf in leaves(one)]
