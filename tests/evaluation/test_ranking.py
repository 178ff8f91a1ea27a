"""How benchmarks/unlabelled.py ranks runs."""

import pytest

from benchmarks.unlabelled import Row, find_runs, rows_of, tau
from tests.made_runs import make_run


def rows(figures, linear, widths):
    return [Row(str(number), *row) for number, row in enumerate(zip(widths, linear, figures, strict=True))]


def test_tau_counts_pairs_of_runs_at_one_width():
    linear = [1.0, 2.0, 3.0, 10.0, 20.0]
    widths = [1.0, 1.0, 1.0, 0.5, 0.5]
    same = rows([{"a": 10 - width + value} for value, width in zip(linear, widths, strict=True)], linear, widths)
    assert tau(same, "a") == (1, 1, 1, 4)
    against = rows([{"a": -value} for value in linear], linear, widths)
    assert tau(against, "a")[0] == -1
    mixed = rows([{"a": value} for value in (1.0, 3.0, 2.0, 5.0, 4.0)], linear, widths)
    value, low, high, pairs = tau(mixed, "a")
    assert (value, pairs) == (0, 4)  # two of the three pairs at 1x, and not the one at 0.5x
    assert -1 <= low < 0 < high <= 1
    one_run = [Row("same", 1.0, value, {"a": value}) for value in (1.0, 2.0)]
    assert tau(one_run, "a")[0] == 0


def test_runs_are_found_and_what_they_lack_is_measured_once(tmp_path, monkeypatch):
    run = make_run(tmp_path / "runs" / "slim")
    make_run(tmp_path / "runs" / "young", finished=False)
    assert [one.folder.name for one in find_runs([tmp_path])] == ["slim"]
    kept = {}
    found = rows_of(run, kept)
    assert [(row.width, row.linear) for row in found] == [(1.0, 90.0), (0.5, 80.0), (0.25, 60.0)]
    assert found[0].figures.keys() == {"rankme", "lidar", "spread"}
    assert found[2].figures.keys() == {"rankme", "lidar", "agreement", "spread"}
    monkeypatch.setattr("benchmarks.unlabelled.measure_quality", lambda *_: pytest.fail("measured again"))
    assert rows_of(run, kept) == found
