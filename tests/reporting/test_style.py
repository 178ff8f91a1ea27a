"""One palette that everyone can tell apart, and texts that are shown as they are."""

from itertools import combinations

import numpy as np
import pytest

from us3l.reporting.page import COLOURS
from us3l.reporting.style import line_style, log_ticks, new_figure, save
from us3l.reporting.tables import round_count

# How people without one kind of cone see linear RGB (Machado, Oliveira and Fernandes 2009), after normal vision.
VISIONS = np.array(
    [
        np.eye(3),
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
    ]
)
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def seen(colour):
    """CIE Lab of a colour, for each kind of vision."""
    parts = np.array([int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    x, y, z = (XYZ @ (VISIONS @ linear).clip(0, 1).T) / np.array([[0.9505], [1], [1.089]])
    f = [np.where(value > 0.008856, np.cbrt(value), 7.787 * value + 16 / 116) for value in (x, y, z)]
    return np.stack([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])], axis=1)


def test_ten_colours_for_any_colour_vision():
    assert len(set(COLOURS)) == 10
    for one, other in combinations(COLOURS, 2):
        assert np.linalg.norm(seen(one) - seen(other), axis=1).min() > 15, (one, other)


def test_lines_of_a_picture_differ():
    assert len({(line_style(n)["color"], line_style(n)["linestyle"]) for n in range(30)}) == 30
    assert len({line_style(n)["color"] for n in range(10)}) == 10
    assert len({line_style(n)["marker"] for n in range(10)}) == 10


@pytest.mark.parametrize("name", ["$", "a $x^ $ b", "$\\frac$", "caf\udce9", "two\x1b[2J"])
@pytest.mark.parametrize("kind", ["png", "svg"])
def test_names_are_no_formulas(tmp_path, name, kind):
    figure = new_figure(4, 3, name)
    axes = figure.add_subplot()
    axes.plot([1, 2], [1, 2], label=name)
    axes.legend()
    axes.set_xlabel(name)
    save(figure, tmp_path / f"a.{kind}")
    assert (tmp_path / f"a.{kind}").stat().st_size > 1000
    assert "\udce9" not in figure.get_suptitle()
    assert "\x1b" not in figure.get_suptitle()


def test_ticks_of_a_logarithmic_axis_are_numbers_that_people_read(tmp_path):
    for label, expected in (("{:g}".format, "2e+06"), (round_count, "2 M")):
        figure = new_figure(6, 4, "costs")
        axes = figure.subplots()
        axes.plot([1e6, 9e6], [1, 2])
        log_ticks(axes, label)
        save(figure, tmp_path / "figure.png")
        shown = [tick.get_text() for tick in axes.get_xticklabels()]
        assert expected in shown
        assert not any("$" in text for text in shown)  # formulas are not drawn as such
