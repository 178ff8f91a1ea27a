import math

import pytest
import torch

from us3l.paper.cells import cells_of
from us3l.paper.scales import SCALES
from us3l.paper.workspace import CellResult, RunFigure
from us3l.reporting.guidelines import guidance_notes, guidelines_figure, rotated, rotation_figure
from us3l.run.training_log import Gauges


def test_the_rotation_is_that_of_equations_9_and_10(tmp_path):
    degrees, temperature = 40.0, 0.5
    gradients = rotated(degrees)
    z, _ = gradients["outputs"]
    angle = math.radians(degrees)
    turn = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]], dtype=z.dtype)
    still = torch.eye(2, dtype=z.dtype) - turn
    before, after = gradients["MSE"]
    torch.testing.assert_close(after - before, z @ still.T)
    weights = (z @ z.T / temperature).softmax(dim=1)
    before, after = gradients["InfoNCE"]
    torch.testing.assert_close(after - before, (z - weights @ z) @ still.T)

    def mean_change(loss: str) -> float:
        before, after = gradients[loss]
        return (after - before).norm(dim=1).mean().item()

    assert mean_change("InfoNCE") < 0.7 * mean_change("MSE") == pytest.approx(1.4 * math.sin(angle / 2))
    rotation_figure(tmp_path / "rotation.png", degrees)
    assert (tmp_path / "rotation.png").stat().st_size > 10_000


def test_the_figure_shows_every_run(tmp_path, monkeypatch):
    found = [CellResult(cell, {"run": RunFigure(10.0 * cell.width)}) for cell in cells_of("guidelines", SCALES["mini"])]
    labels = list(dict.fromkeys(one.cell.label for one in found))
    gauges = {"0.25": {"turn": 0.5, "change": 0.7, "spread": 0.9}}
    events = [Gauges(9, 1, {"0.25": {"spread": 0.9}}), Gauges(19, 2, gauges)]  # the first has no turn
    drawn = []
    monkeypatch.setattr("us3l.reporting.style.save", lambda figure, _: drawn.append(figure))
    guidelines_figure(dict.fromkeys(labels, events), dict.fromkeys(labels, 1), found, tmp_path / "a.png", "a title")
    turns, changes, spreads, accuracies = drawn[0].axes
    assert len({(line.get_color(), line.get_marker()) for line in accuracies.lines}) == len(labels)
    assert [len(axes.lines) for axes in drawn[0].axes] == [len(labels)] * 4 == [12] * 4
    assert list(turns.lines[0].get_xdata()) == list(changes.lines[0].get_xdata()) == [2]
    assert list(spreads.lines[0].get_xdata()) == [1, 2]
    assert list(accuracies.lines[0].get_ydata()) == [2.5, 5, 7.5, 10]


def test_the_notes_say_whether_steady_guidance_explains_the_accuracy():
    narrow = [cell for cell in cells_of("guidelines", SCALES["mini"]) if cell.width == 0.25]
    labels = [cell.label for cell in narrow]

    def events(turn: float, spread: float = 0.9) -> list[Gauges]:
        first = {"0.25": {"spread": 0.5}}  # nothing to compare with yet
        return [Gauges(9, 1, first)] + [
            Gauges(9, 1, {"0.25": {"turn": turn + shift, "change": 0.7, "spread": spread}}) for shift in (-0.1, 0.1)
        ]

    runs = {labels[0]: events(0.9, 0.0)} | {labels[n]: events(turn) for n, turn in ((1, 0.5), (2, 0.3), (3, 0.4))}
    accuracies = [1.0, 10.0, 30.0, 20.0]
    found = [
        CellResult(cell, {"run": RunFigure(accuracy, collapsed=cell is narrow[0])})
        for cell, accuracy in zip(narrow, accuracies, strict=False)
    ]
    table, tau = map(str, guidance_notes(runs, dict.fromkeys(labels, 1), found))
    assert f"| {labels[0]} | 1 | 0.90 | 0.70 | 0.00 | collapsed |" in table
    assert f"| {labels[1]} | 1 | 0.50 | 0.70 | 0.90 | 10.0 |" in table
    assert "-1.00 over the 3 compositions" in tau
    assert len(guidance_notes({labels[0]: runs[labels[0]]}, dict.fromkeys(labels, 1), found)) == 1
