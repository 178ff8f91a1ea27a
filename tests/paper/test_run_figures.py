import json
import threading
from dataclasses import replace

import pytest

from us3l.paper.run_figures import FigureKey, RunFigure, add_figures, read_figures
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
