"""A few changed files of every kind; `python -m fuzz` reads many more, within limits of time and memory."""

import re
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

import fuzz.run
from fuzz.kinds import KINDS
from fuzz.run import CHANGES, Form, Report, changed_file, outcome_of
from fuzz.tally import Tally

COUNT = 8


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Good files of each kind, made once: the exports among them take seconds."""

    @cache
    def make(name: str) -> Path:
        folder = tmp_path_factory.mktemp(name)
        KINDS[name].make(folder)
        assert outcome_of(KINDS[name], folder) == ("accepted", "")
        return folder

    return make


@pytest.mark.parametrize("form", CHANGES)
@pytest.mark.parametrize("name", KINDS)
def test_changed_files_are_read_or_refused(name: str, form: Form, made: Callable[[str], Path], tmp_path: Path) -> None:
    kind, good, outcomes = KINDS[name], made(name), []
    for number in range(COUNT):
        changed_file(name, form, 1, number, good, tmp_path / "changed")
        outcome, what = outcome_of(kind, tmp_path / "changed")
        assert outcome in ("accepted", "refused"), f"{name} {number}: {what}"
        outcomes.append(outcome)
    assert "refused" in outcomes


@pytest.mark.parametrize("form", CHANGES)
def test_changes_are_the_same_every_time(form: Form, made: Callable[[str], Path], tmp_path: Path) -> None:
    good = made("voc")
    for place in ("one", "two"):
        changed_file("voc", form, 0, 5, good, tmp_path / place)
    for path in (tmp_path / "one").rglob("*.xml"):
        assert path.read_bytes() == (tmp_path / "two" / path.relative_to(tmp_path / "one")).read_bytes()


def test_what_was_read_is_used(tmp_path: Path) -> None:
    broken = replace(KINDS["voc"], read=lambda _: None, use=lambda _: 1 / 0)
    assert outcome_of(broken, tmp_path)[0] == "unexpected error"


def test_what_is_neither_read_nor_refused_is_told(tmp_path: Path) -> None:
    broken = replace(KINDS["voc"], read=lambda _: 1 / 0)
    outcome, what = outcome_of(broken, tmp_path)
    assert outcome == "unexpected error"
    assert re.fullmatch(r"ZeroDivisionError at test_mutations.py:\d+: division by zero", what)


@pytest.mark.parametrize(("times", "outcomes"), [(1, {"accepted": 1}), (2, {"too slow": 1})])
def test_a_file_is_too_slow_when_it_is_so_twice(tmp_path: Path, monkeypatch, times: int, outcomes: dict) -> None:
    """Once may have been the machine's fault."""

    def read(folder: Path) -> None:
        waited = len(list(tmp_path.iterdir()))
        if folder.name == "changed" and waited < times:
            (tmp_path / str(waited)).touch()
            time.sleep(20)

    monkeypatch.setitem(KINDS, "voc", replace(KINDS["voc"], read=read))
    monkeypatch.setattr(fuzz.run, "PATIENCE", 1.0)
    report = fuzz.run.run(Report("voc"), 1)
    assert report.outcomes == outcomes
    assert report.paused == {0}


def test_what_was_counted_is_kept_and_gone_on_with(tmp_path: Path) -> None:
    whole = fuzz.run.run(Report("voc", "structured"), 12)
    tally = Tally(tmp_path / "tally.json")
    fuzz.run.run(tally.report(Report("voc", "structured")), 5)
    tally.save()
    later = Tally(tmp_path / "tally.json").report(Report("voc", "structured"))
    assert later.next == 5
    assert fuzz.run.run(later, 12).outcomes == whole.outcomes
    with pytest.raises(SystemExit, match="--seed 0"):
        Tally(tmp_path / "tally.json").report(Report("voc", "structured", seed=1))
