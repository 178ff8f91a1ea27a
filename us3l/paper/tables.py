"""The paper's tables, one CSV file each, named by their LaTeX labels."""

from __future__ import annotations

import csv
from functools import cache
from importlib.resources import files

Row = dict[str, str]


@cache
def table(name: str) -> list[Row]:
    """The rows of a table; `-` is a collapsed model."""
    text = (files("us3l.paper") / "tables" / f"{name}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
