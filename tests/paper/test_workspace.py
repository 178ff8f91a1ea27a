import json
import threading
from dataclasses import replace

import pytest

from us3l.paper.cells import cells_of, chosen_rows
from us3l.paper.scales import SCALES
from us3l.paper.workspace import CellResult, FigureKey, RunFigure, add_figures, collapsed, disagreements, read_figures
from us3l.run.training_log import Gauges
from us3l.system.errors import UserError

CELL = FigureKey("resnet18-seed0-0123abcd", "cifar100", "linear", 0.25)
FIGURE = RunFigure(18.25, False, 16.5, 640_000, "bf16-mixed")


def test_what_is_added_is_read_back_and_new_figures_replace_old_ones(tmp_path):
    path = tmp_path / "tables" / "figures.json"
    other = replace(CELL, data="cifar10")
    add_figures(path, {CELL: RunFigure(1.0), other: RunFigure(2.0, collapsed=True)})
    add_figures(path, {CELL: FIGURE})
    assert read_figures(path) == {CELL: FIGURE, other: RunFigure(2.0, collapsed=True)}


def test_processes_that_add_at_once_lose_nothing(tmp_path):
    path = tmp_path / "figures.json"
    cells = [replace(CELL, run=f"run{number}") for number in range(8)]
    threads = [threading.Thread(target=add_figures, args=(path, {cell: FIGURE})) for cell in cells]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read_figures(path) == dict.fromkeys(cells, FIGURE)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"value": None}, "value: expected float, got null"),
        ({"value": "18"}, "value: expected float, got str"),
        ({"width": float("inf")}, "width: "),
        ({"run": 3}, "run: expected str, got int"),
        ({"macs": [1]}, "macs: "),
        ({"collapsed": 1}, "collapsed: expected bool, got int"),
    ],
)
def test_damage_is_named(change, words, tmp_path):
    path = tmp_path / "figures.json"
    add_figures(path, {CELL: FIGURE})
    content = json.loads(path.read_text())
    content["figures"][0] |= change
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=words):
        read_figures(path)


@pytest.mark.parametrize("content", ["{}", '{"version": 2, "figures": []}', '{"version": 1, "figures": [3]}', "[]"])
def test_other_files_are_refused(content, tmp_path):
    path = tmp_path / "figures.json"
    path.write_text(content)
    with pytest.raises(UserError, match=r"figures\.json"):
        read_figures(path)


def test_rows_in_another_order_than_the_papers_are_named():
    """US+SimCLR above US3L; US+SimSiam collapsed, as in the paper."""
    cells = chosen_rows(cells_of("main-cifar100", SCALES["mini"]), [7, 8, 9])
    accuracies = {7: 31.0, 8: 1.1, 9: 20.0}
    found = [CellResult(cell, {"run": RunFigure(accuracies[cell.row], cell.row == 8)}) for cell in cells]
    above, below, ours, paper = disagreements(found)[0]
    assert (above, below) == ("ResNet-18, US+SimCLR", "ResNet-18, Ours")
    assert (ours, paper) == pytest.approx((11.0, (65.5 + 61.8 + 57.4 - 69.0 - 64.7 - 60.4) / 3))
    assert len(disagreements(found)) == 1


def test_collapse_is_the_last_gauge_at_the_nearest_width():
    def event(*spreads: float) -> Gauges:
        return Gauges(1, 1, {name: {"spread": value} for name, value in zip(("1", "0.25"), spreads, strict=True)})

    assert collapsed([event(0.9, 0.9), event(0.9, 0.05)], 0.3)
    assert not collapsed([event(0.9, 0.05), event(0.9, 0.9)], 0.3)
    assert not collapsed([event(0.9, 0.05)], 0.9)
    assert not collapsed([], 1.0)
