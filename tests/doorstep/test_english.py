"""Phrases that read like a translation, and what to write instead (docs/contributing.md, "Rules worth knowing")."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INSTEAD = {
    r"\b(?:only|than|with|of|most) so many\b": "this many",
    r"\bhow dear\b|\bas dear\b": "relative cost",
    r"(?<!there )\bis no (?:width|bundle|folder|file|run|image|network)\b": "is not a ...",
    r"\b(?:row|line|images?|ms|widths|update|labels?|one|thread) an? (?:image|width|step|class|batch|request)\b": "per",
    r"\bto be had\b": "available",
    r"\banew\b": "again",
    r"\bmend(?:s|ed)?\b": "repair, fix",
    r"\botherwise than\b": "unlike",
    r"\bto be seen\b": "visible",
    r"\bintervals? of 95 %": "95 % interval",
}
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "us3l").rglob("*.py")]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_english_is_idiomatic(path):
    text = " ".join(path.read_text(encoding="utf-8").split())
    found = [(match[0], better) for phrase, better in INSTEAD.items() for match in re.finditer(phrase, text)]
    assert not found
