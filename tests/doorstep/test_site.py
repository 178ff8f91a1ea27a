"""What `make docs` would refuse, found without its tools."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import yaml

DOCS = Path(__file__).parents[2] / "docs"
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


def leaves(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [leaf for one in (value.values() if isinstance(value, dict) else value) for leaf in leaves(one)]
