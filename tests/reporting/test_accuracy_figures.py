import sys
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from tests.made_runs import result
from us3l.reporting import style as styles
from us3l.reporting.accuracy_figures import KNN, LINEAR, Line, accuracy_figure, cost_figure, lines_of
from us3l.system.errors import UserError

NINE = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.25)


def results(widths=NINE, **changes):
    return [
        result(
            **{
                "width": width,
                "params": int(11e6 * width**2),
                "macs": int(557e6 * width**2),
                "knn": 40 + 20 * width,
                "linear": 50 + 22 * width,
                "knn_untrained": 30 + 2 * width,
                "linear_untrained": 35 + 4 * width,
            }
            | changes
        )
        for width in widths
    ]


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """Draws, and hands back the figure that was saved."""

    def draw(*arguments, function=accuracy_figure):
        kept = []

        class Kept(Figure):
            def savefig(self, *arguments, **options):
                kept.append(self)
                super().savefig(*arguments, **options)

        monkeypatch.setattr(styles, "Figure", Kept)
        function(arguments[0], tmp_path / "figure.png", *arguments[1:])
        return kept[0]

    return draw


def test_lines_carry_the_numbers(drawn):
    figure = drawn(results(), "digits")
    lines = {line.get_label(): line for line in figure.axes[0].lines if not line.get_label().startswith("_")}
    assert list(lines) == ["linear probe", "linear probe, untrained", "kNN", "kNN, untrained"]
    for name, field, colour, style in [
        ("linear probe", "linear", LINEAR, "-"),
        ("linear probe, untrained", "linear_untrained", LINEAR, "--"),
        ("kNN", "knn", KNN, "-"),
        ("kNN, untrained", "knn_untrained", KNN, "--"),
    ]:
        expected = sorted((each.cost.macs, each.row[field]) for each in results())
        np.testing.assert_allclose(lines[name].get_xydata(), expected)
        assert (lines[name].get_color(), lines[name].get_linestyle()) == (colour, style)
    assert figure.get_suptitle() == "digits"


def width_labels(figure):
    top = figure.axes[0].child_axes[0]
    return dict(zip((label.get_text() for label in top.get_xticklabels()), top.get_xticks(), strict=True))


def test_each_width_is_named_above_its_point(drawn):
    labels = width_labels(drawn(results()))
    assert labels == {f"{width:g}x": int(557e6 * width**2) for width in NINE}


@pytest.mark.parametrize("widths", [NINE, (1.0, 0.75, 0.5, 0.25), np.linspace(0.25, 1, 90).tolist(), (0.5,)])
def test_labels_do_not_overlap_or_leave_the_picture(drawn, widths):
    figure = drawn(results(widths), "a long title " * 8)
    renderer = figure.canvas.get_renderer()
    axes, top = figure.axes[0], figure.axes[0].child_axes[0]
    for ruler in (axes, top):
        low, high = axes.get_xlim()
        ticks = [t for t, x in zip(ruler.get_xticklabels(), ruler.get_xticks(), strict=True) if low <= x <= high]
        boxes = sorted((tick.get_window_extent(renderer) for tick in ticks), key=lambda box: box.x0)
        assert boxes
        assert all(left.x1 < right.x0 for left, right in pairwise(boxes))
        assert all(figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 for box in boxes)


def test_files(tmp_path):
    accuracy_figure(results(), tmp_path / "eval" / "a.png")
    with Image.open(tmp_path / "eval" / "a.png") as image:
        assert image.size == (1600, 1000)
    accuracy_figure(results(), str(tmp_path / "a.svg"))
    accuracy_figure(results(), tmp_path / "b.svg")
    assert ElementTree.parse(tmp_path / "a.svg").getroot().tag.endswith("svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_missing_numbers_are_left_out(drawn):
    figure = drawn([*results((1.0, 0.5), knn=None, knn_untrained=None), result(0.25, 10, 20_000_000)])
    lines = [line for line in figure.axes[0].lines if not line.get_label().startswith("_")]
    assert [line.get_label() for line in lines] == ["linear probe", "linear probe, untrained"]
    assert len(lines[0].get_xdata()) == 2


@pytest.mark.parametrize("nothing", [[], [result(0.5)]])
def test_nothing_to_draw(nothing, tmp_path):
    with pytest.raises(UserError, match="nothing to draw"):
        accuracy_figure(nothing, tmp_path / "a.png")
    assert not (tmp_path / "a.png").exists()


def test_unknown_ending(tmp_path):
    with pytest.raises(UserError, match=r"\.png or \.svg, not a\.pdf"):
        accuracy_figure(results(), tmp_path / "a.pdf")


def test_pyplot_stays_out_of_it(drawn):
    before = "matplotlib.pyplot" in sys.modules
    drawn(results())
    assert ("matplotlib.pyplot" in sys.modules) == before


def test_three_costs_side_by_side(drawn):
    other = results((1.0, 0.25), linear=12.5)
    lines = [Line("one", results(), "linear"), Line("other", other, "linear")]
    figure = drawn(lines, "several runs", function=cost_figure)
    assert [axes.get_xlabel().split(" ")[0] for axes in figure.axes] == ["width", "MACs", "parameters"]
    for axes, cost in zip(figure.axes, ("width", "macs", "params"), strict=True):
        one, another = axes.lines
        expected = sorted((each.row[cost], each.percent("linear")) for each in results())
        np.testing.assert_allclose(one.get_xydata(), expected)
        assert another.get_ydata().tolist() == [12.5, 12.5]
        assert one.get_color() != another.get_color()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["one", "other"]


def test_lines_for_what_was_measured(tmp_path):
    assert [line.metric for line in lines_of(results())] == ["linear", "knn"]
    assert [line.metric for line in lines_of(results(linear=None, knn=None, finetuned=3.0))] == ["finetuned"]
    with pytest.raises(UserError, match="nothing to draw"):
        cost_figure([Line("x", results(linear=None), "linear")], tmp_path / "a.png", "nothing")
    cost_figure(lines_of(results((0.5,))), tmp_path / "a.png", "one width")
    assert Image.open(tmp_path / "a.png").size == (2600, 1000)
