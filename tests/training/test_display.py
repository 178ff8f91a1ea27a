import re
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from us3l.objective.spec import Objective
from us3l.system import progress
from us3l.system.progress import SILENT, Counting, Screen, clock
from us3l.training.display import SPREAD, Display, losses_line


@pytest.fixture
def clockwork(monkeypatch):
    """Time that passes only when told to."""
    now = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_durations():
    assert [clock(s) for s in (0.4, 59.4, 61, 3599, 3600, 90061)] == [
        "0 s",
        "59 s",
        "1 min 1 s",
        "59 min 59 s",
        "1 h 0 min",
        "25 h 1 min",
    ]


def test_plain_lines_come_now_and_then_and_the_last_always(tmp_path, clockwork):
    written = StringIO()
    console = Console(file=written, width=60)
    with Display(Screen(console), tmp_path / "log", [1.0] * 4, start=0) as display:
        for step in range(4):
            display.step(step, 2.0, 100, "1/1", "1x 3.0")
            clockwork[0] += 6
    lines = written.getvalue().splitlines()
    assert [line.split("step ")[1][:3] for line in lines] == ["1/4", "3/4", "4/4"]
    assert "50 images/s" in lines[0]
    assert "6 s left" in lines[0]
    assert "\x1b" not in written.getvalue()
    assert (tmp_path / "log").read_text().count("\n") == 3


def test_the_estimate_knows_that_later_steps_are_dearer():
    written = StringIO()
    console = Console(file=written, width=200)
    display = Display(Screen(console), None, [1.0, 1.0, 3.0, 3.0], start=0)
    display.step(0, 1.0, 8, "1/1", "1x 3.0")
    assert "7 s left" in written.getvalue()
    resumed = Display(Screen(console), None, [1.0, 1.0, 3.0, 3.0], start=2)
    resumed.step(2, 3.0, 8, "1/1", "1x 3.0")
    assert "3 s left" in written.getvalue()


def test_after_the_first_steps_it_is_said_how_long_it_takes() -> None:
    written = StringIO()
    display = Display(Screen(Console(file=written, width=200)), None, [1.0] * 50 + [3.0] * 50, start=0)
    for step in range(30):
        display.step(step, 6.0, 8, "1/1", "1x 3.0")
    assert written.getvalue().count("about 20 min 0 s of training, measured on the first 10 steps") == 1
    quick = Display(Screen(Console(file=written, width=200)), None, [1.0] * 100, start=0)
    for step in range(30):
        quick.step(step, 0.5, 8, "1/1", "1x 3.0")
    assert written.getvalue().count("measured on") == 1  # less than a minute is seen soon enough


def test_a_terminal_gets_a_live_table():
    written = StringIO()
    console = Console(file=written, width=100, force_terminal=True, _environ={"TERM": "xterm"})
    with Display(Screen(console), None, [1.0] * 2, start=0) as display:
        display.show({0.5: {"spread": 0.7, "knn": 61.25}})
        display.step(0, 1.0, 8, "1/1", "1x 3.0")
        display.live.refresh()
    output = written.getvalue()
    assert "61.2" in output
    assert "0.70" in output
    assert "spread (1: healthy, 0: collapsed)" in output


def test_no_number_is_cut_at_80_columns():
    console = Console(file=(out := StringIO()), width=80, force_terminal=True, _environ={"TERM": "xterm"})
    losses = losses_line(Objective(), [1.0, 0.25, 0.55], [4.25, -0.5, -0.625])
    with Display(Screen(console), None, [1.0] * 123_456, start=123_450) as display:
        display.step(123_450, 1.0, 8, "1000/1000", losses)
        display.live.refresh()
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())
    for number in ("1000/1000", "123451/123456", "5 s left", "4.250", "-0.500", "-0.625"):
        assert number in lines
    assert "…" not in lines
    console = Console(file=(out := StringIO()), width=80, force_terminal=True, _environ={"TERM": "xterm"})
    with Counting(console, "collecting batch-norm statistics for all 378 distinct widths of them", 774_144) as counting:
        counting.more(123_456)
        counting.bar.refresh()
    assert "123456/774144" in out.getvalue()
    assert "…" not in out.getvalue()


def test_losses_of_unlike_kinds_are_named():
    method = replace(Objective(), base_loss="mse", distill_loss="infonce")
    assert losses_line(method, [1.0], [-0.5]) == "loss: full network -0.500 (negative cosine)"
    mixed = losses_line(replace(Objective(), teacher_relations=0.25), [1.0, 0.5], [4.0, 1.0])
    assert mixed.endswith("sub-networks 0.5x 1.000 (negative cosine + similarities of the teacher)")


def test_gauges_for_newcomers_and_what_spread_is(tmp_path):
    console = Console(file=(out := StringIO()), width=80)
    display = Display(Screen(console), tmp_path / "log", [1.0], start=0)
    for _ in range(2):
        display.show({0.5: {"spread": 0.7, "knn": 61.25, "turn": 0.5, "change": 0.1}})
    display.show({0.5: {"spread": 0.7, "lidar": 23.94, "rankme": 40.0}})
    (cells,) = zip(*(column.cells for column in display.table().columns), strict=True)
    assert cells == ("0.5x", "23.9", "0.70")
    lines = [SPREAD, *2 * ["0.5x kNN 61.2 %, spread 0.70"], "0.5x LiDAR 23.9, spread 0.70"]
    assert out.getvalue().splitlines() == lines


def test_a_line_of_the_log_is_one_line(tmp_path):
    display = Display(SILENT, tmp_path / "log", [1.0], start=0)
    display.record("photos\n2026-01-01 00:00:00 forged \x1b[2J caf\udce9")
    (line,) = (tmp_path / "log").read_text().splitlines()
    assert line.endswith(r"photos 2026-01-01 00:00:00 forged \x1b[2J caf\udce9")


def test_counting_in_plain_lines(clockwork):
    written = StringIO()
    console = Console(file=written, width=100)
    with Counting(console, "embedding", 100) as counting:
        counting.more(10)
        clockwork[0] += 20
        counting.more(10)
        counting.more(10)
    assert written.getvalue() == "embedding: 20/100, 1 per s, 1 min 20 s left\n"


def test_waiting_for_images_is_said_when_it_matters(clockwork):
    written = StringIO()
    display = Display(Screen(Console(file=written, width=200)), None, [1.0] * 3, start=0)
    for step, waited in enumerate((0.1, 0.5, 0.0)):
        display.step(step, 2.0, 100, "1/1", "1x 3.0", waited)
        clockwork[0] += 60
    first, second, third = written.getvalue().splitlines()
    assert "waiting" not in first
    assert "(25% of the time waiting for images)" in second
    assert "waiting" not in third
