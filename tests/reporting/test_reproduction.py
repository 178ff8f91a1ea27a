import csv
import io

import pytest
from rich.console import Console

from us3l.paper.reproduce import chosen_rows, entries
from us3l.paper.run_figures import RunFigure
from us3l.paper.scales import SCALES
from us3l.paper.workspace import Found, collapsed, disagreements
from us3l.reporting.reproduction import (
    as_csv,
    every_width_figure,
    markdown,
    reproduction_figure,
    reproduction_table,
)
from us3l.run.training_log import Gauges

ENTRIES = chosen_rows(entries("main-cifar100", SCALES["mini"]), [7, 8, 9])


@pytest.fixture
def found():
    """US+SimCLR above US3L, other than in the paper; US+SimSiam collapsed; the third with one seed."""
    values = {7: (30.0, 32.0), 8: (1.0, 1.2), 9: (20.0,)}
    near = {7: (28.0, 27.0)}
    return [found_of(one, values[one.row], one.row == 8, near.get(one.row, (None, None))) for one in ENTRIES]


def found_of(entry, values, collapsed=False, near=(None, None), macs=None):
    """A figure of several seeds."""
    seeds = zip(values, near, strict=False)
    return Found(entry, {f"seed{n}": RunFigure(value, collapsed, knn, macs) for n, (value, knn) in enumerate(seeds)})


def test_ours_the_papers_and_the_difference(found):
    console = Console(width=80, record=True, quiet=True)
    with console.capture() as captured:
        console.quiet = False
        console.print(reproduction_table(found, "a title"))
    lines = captured.get().splitlines()
    ours, knn, paper, difference = lines[4:8]
    assert ours.split() == "7. ResNet-18, US+SimCLR (2 seeds) 31.0±1.4 31.0±1.4 31.0±1.4 31.0±1.4".split()
    assert paper.split() == ["paper", "65.5", "61.8", "57.4"]  # it has no 0.75x
    assert difference.split() == ["difference", "-34.5", "-30.8", "-26.4"]
    assert knn.split() == ["kNN"] + ["27.5±0.7"] * 4
    assert lines[8].split()[-5:] == ["seeds)", "-", "-", "-", "-"]
    assert max(map(len, lines)) <= 80
    assert markdown(found, "a title", ["first", "second"]).count("\n|") == 2 + 4 + 2 + 3


def test_csv_keeps_what_the_table_hides(found):
    rows = list(csv.DictReader(io.StringIO(as_csv(found))))
    assert len(rows) == 12
    first, collapse = rows[0], rows[4]
    assert (first["ours"], first["deviation"], first["seeds"], first["paper"]) == ("31", "1.41", "2", "65.5")
    assert (first["knn"], first["knn_deviation"], collapse["knn"]) == ("27.5", "0.707", "")
    assert (collapse["ours"], collapse["collapses"], collapse["column"]) == ("1.1", "2", "1x")


def test_rows_in_another_order_than_the_papers_are_named(found):
    above, below, ours, paper = disagreements(found)[0]
    assert (above, below) == ("ResNet-18, US+SimCLR", "ResNet-18, Ours")
    assert (ours, paper) == pytest.approx((11.0, (65.5 + 61.8 + 57.4 - 69.0 - 64.7 - 60.4) / 3))
    assert len(disagreements(found)) == 1


def test_rows_without_a_figure_of_ours_are_left_out(found):
    fewer = [Found(one.entry) if one.entry.row == 8 else one for one in found]
    assert "US+SimSiam" not in markdown(fewer, "a title", [""])


@pytest.mark.parametrize("name", ["main-cifar100", "coco", "plus-ablation"])
def test_the_picture_is_drawn_for_each_kind_of_table(name, tmp_path):
    found = [found_of(entry, (50 * entry.width, 52 * entry.width)) for entry in entries(name, SCALES["mini"])]
    reproduction_figure(found, tmp_path / "figure.png", "a title")
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_every_width_is_drawn_over_its_cost(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("matplotlib.axes.Axes.errorbar", lambda _, *given, **named: drawn.append((*given, named)))
    found = [
        found_of(entry, (50 * entry.width, 52 * entry.width), False, (40 * entry.width, None), int(1e7 * entry.width))
        for entry in entries("every-width", SCALES["mini"])
    ]
    every_width_figure(found, tmp_path / "figure.png")
    assert [line[-1]["label"] for line in drawn[:4]] == list(dict.fromkeys(one.entry.label for one in found))
    costs, means, errors, _ = drawn[3]
    assert costs == (2.5, 5.0, 7.5, 10.0)
    assert means == pytest.approx((12.75, 25.5, 38.25, 51.0))
    assert errors[3] == pytest.approx(2**0.5)
    assert drawn[4][1] == (10.0, 20.0, 30.0, 40.0)
    assert drawn[4][2] is None
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_collapse_is_the_last_gauge_at_the_nearest_width():
    def event(*spreads: float) -> Gauges:
        return Gauges(1, 1, {name: {"spread": value} for name, value in zip(("1", "0.25"), spreads, strict=True)})

    assert collapsed([event(0.9, 0.9), event(0.9, 0.05)], 0.3)
    assert not collapsed([event(0.9, 0.05), event(0.9, 0.9)], 0.3)
    assert not collapsed([event(0.9, 0.05)], 0.9)
    assert not collapsed([], 1.0)
