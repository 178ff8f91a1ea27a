"""A few changed files of every kind; `python -m fuzz` reads many more, within limits of time and memory."""

from dataclasses import replace
from pathlib import Path

import pytest

from fuzz.kinds import KINDS
from fuzz.run import changed_file, outcome_of

COUNT = 12


@pytest.mark.parametrize("name", KINDS)
def test_changed_files_are_read_or_refused(name: str, tmp_path: Path) -> None:
    kind, good = KINDS[name], tmp_path / "good"
    good.mkdir()
    kind.make(good)
    assert outcome_of(kind, good) == ("accepted", "")
    outcomes = []
    for number in range(COUNT):
        changed_file(kind, name, 1, number, good, tmp_path / "changed")
        outcome, what = outcome_of(kind, tmp_path / "changed")
        assert outcome in ("accepted", "refused"), f"{name} {number}: {what}"
        outcomes.append(outcome)
    assert "refused" in outcomes


def test_changes_are_the_same_every_time(tmp_path: Path) -> None:
    kind, good = KINDS["voc"], tmp_path / "good"
    good.mkdir()
    kind.make(good)
    for place in ("one", "two"):
        changed_file(kind, "voc", 0, 5, good, tmp_path / place)
    for path in (tmp_path / "one").rglob("*.xml"):
        assert path.read_bytes() == (tmp_path / "two" / path.relative_to(tmp_path / "one")).read_bytes()


def test_what_is_neither_read_nor_refused_is_told(tmp_path: Path) -> None:
    broken = replace(KINDS["voc"], read=lambda _: 1 / 0)
    assert outcome_of(broken, tmp_path) == ("unexpected error", "ZeroDivisionError: division by zero")
