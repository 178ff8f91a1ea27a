import pytest
from rich.console import Console

from us3l.paper.cells import cells_of, chosen_rows
from us3l.paper.scales import SCALES
from us3l.paper.workspace import CellResult, RunFigure
from us3l.reporting.reproduction import (
    Reproduction,
    as_markdown,
    every_width_figure,
    reproduction_figure,
    reproduction_table,
)

CELLS = chosen_rows(cells_of("main-cifar100", SCALES["mini"]), [7, 8, 9])


@pytest.fixture
def found():
    """US+SimCLR above US3L, other than in the paper; US+SimSiam collapsed; the third with one seed."""
    values = {7: (30.0, 32.0), 8: (1.0, 1.2), 9: (20.0,)}
    near = {7: (28.0, 27.0)}
    return [found_of(one, values[one.row], one.row == 8, near.get(one.row, (None, None))) for one in CELLS]


def found_of(cell, values, collapsed=False, near=(None, None), macs=None):
    """A figure of several seeds."""
    seeds = zip(values, near, strict=False)
    return CellResult(
        cell, {f"seed{n}": RunFigure(value, collapsed, knn, macs) for n, (value, knn) in enumerate(seeds)}
    )


def made(results):
    return Reproduction("main-cifar100", results, ["small", "a note"], [])


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
    assert as_markdown(made(found)).count("\n|") == 2 + 4 + 2 + 3


def test_csv_keeps_what_the_table_hides(found):
    rows = made(found).rows
    assert len(rows) == 12
    first, collapse = rows[0], rows[4]
    assert (first["ours"], first["deviation"], first["seeds"], first["paper"]) == ("31", "1.41", "2", "65.5")
    assert (first["knn"], first["knn_deviation"], collapse["knn"]) == ("27.5", "0.707", "")
    assert (collapse["ours"], collapse["collapses"], collapse["column"]) == ("1.1", "2", "1x")


def test_rows_without_a_figure_of_ours_are_left_out(found):
    fewer = [CellResult(one.cell) if one.cell.row == 8 else one for one in found]
    assert "US+SimSiam" not in as_markdown(made(fewer))


@pytest.mark.parametrize("name", ["main-cifar100", "coco", "plus-ablation"])
def test_the_picture_is_drawn_for_each_kind_of_table(name, tmp_path):
    found = [found_of(cell, (50 * cell.width, 52 * cell.width)) for cell in cells_of(name, SCALES["mini"])]
    reproduction_figure(found, tmp_path / "figure.png", "a title")
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_every_width_is_drawn_over_its_cost(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("matplotlib.axes.Axes.errorbar", lambda _, *given, **named: drawn.append((*given, named)))
    found = [
        found_of(cell, (50 * cell.width, 52 * cell.width), False, (40 * cell.width, None), int(1e7 * cell.width))
        for cell in cells_of("every-width", SCALES["mini"])
    ]
    every_width_figure(found, tmp_path / "figure.png")
    assert [line[-1]["label"] for line in drawn[:4]] == list(dict.fromkeys(one.cell.label for one in found))
    costs, means, errors, _ = drawn[3]
    assert costs == (2.5, 5.0, 7.5, 10.0)
    assert means == pytest.approx((12.75, 25.5, 38.25, 51.0))
    assert errors[3] == pytest.approx(2**0.5)
    assert drawn[4][1] == (10.0, 20.0, 30.0, 40.0)
    assert drawn[4][2] is None
    assert (tmp_path / "figure.png").stat().st_size > 10_000
