"""The table of settings in docs/reproduce.md says what the recipes are, and gives a reason where they differ."""

import re
from functools import reduce
from pathlib import Path

import pytest

from us3l.training.recipes import RECIPES, Recipe, named

PAGE = Path(__file__).parents[2] / "docs" / "reproduce.md"
WORDS = {"none": None, "yes": True, "no": False}
ALWAYS = ("optimiser.lr", "optimiser.weight_decay", "epochs", "batch_size", "objective.alpha", "objective.temperature")


def settings() -> list[list[str]]:
    section = PAGE.read_text(encoding="utf-8").split("## Settings where")[1].split("##")[0]
    rows = [line.strip("| ").split("|") for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in row] + [""] * (6 - len(row)) for row in rows]


def value(text: str):
    """What a cell means: a number, several of them, a word."""
    if text in WORDS:
        return WORDS[text]
    try:
        numbers = tuple(map(float, text.split()))
    except ValueError:
        return text
    return numbers[0] if len(numbers) == 1 else numbers


def recipes(cell: str) -> list[Recipe]:
    found = []
    for part in cell.split(", "):
        name, _, method = part.replace("`", "").partition(" ")
        found.append(named(name).with_method(method) if method else named(name))
    return found


@pytest.mark.parametrize("row", settings(), ids=lambda row: re.sub("[` ]", "", f"{row[0]}:{row[1]}"))
def test_the_table_says_what_the_recipes_are(row):
    where, setting, paper, code, here, reason = row
    for recipe in recipes(where):
        assert reduce(getattr, setting.strip("`").split("."), recipe) == value(here)
    expected = code if paper == "-" else paper
    assert value(here) == value(expected) or len(reason) > 20


def test_every_recipe_of_the_paper_is_in_it():
    rows = settings()
    told = {
        (name.strip("`"), setting.strip("`"))
        for where, setting, *_ in rows
        for name in where.split(", ")
        if " " not in name
    }
    ours = [name for name in RECIPES if not name.startswith("mini") and (name.startswith(("cifar-", "imagenet-")))]
    for name in ours:
        expected = [s for s in ALWAYS if not (name.startswith("imagenet") and s.startswith("objective"))]
        assert not [setting for setting in expected if (name, setting) not in told], name
