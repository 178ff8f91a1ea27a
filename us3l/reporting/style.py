"""How every picture looks: one palette, one kind of figure, one way to save it. Imports matplotlib: import it late."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from us3l.reporting.page import COLOURS
from us3l.system.errors import UserError
from us3l.system.files import replacing
from us3l.system.streams import one_line

INK = "#444444"
RULE = "#e4e4e4"
MARKERS = "osD^vP*Xph"
DASHES = ("-", "--", ":", "-.")


def line_style(number: int) -> dict[str, Any]:
    """Return the style of a picture's line, by its number: ten colours, each with its marker, then the same dashed.

    >>> line_style(0) == line_style(10) | {"linestyle": "-"}
    True
    """
    turn, place = divmod(number, len(COLOURS))
    return {"color": COLOURS[place], "marker": MARKERS[place], "linestyle": DASHES[turn % len(DASHES)]}


def new_figure(width: float, height: float, title: str) -> Figure:
    """Return an empty figure with its title, in inches."""
    figure = Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.15, h_pad=0.08))
    FigureCanvasAgg(figure)
    figure.suptitle(title, x=0.02, ha="left", fontsize=13, fontweight="bold", wrap=True)
    return figure


def plain(axes: Axes, x: str | None = None, y: str | None = None) -> None:
    """Draw rules instead of a frame, and name the axes."""
    axes.grid(axis="y", color=RULE, linewidth=0.8)
    axes.set_axisbelow(True)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(labelsize=11, colors=INK, length=0)
    if x is not None:
        axes.set_xlabel(x, fontsize=12, color=INK)
    if y is not None:
        axes.set_ylabel(y, fontsize=12, color=INK)


def log_ticks(axes: Axes, label: Callable[[float], str] = "{:g}".format) -> None:
    """Make the x axis logarithmic, with ticks at 1, 2 and 5, and what they say."""
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: label(value)))
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_minor_locator(NullLocator())


def legend(figure: Figure, axes: Axes, columns: int = 4, size: float = 11) -> None:
    """Say what the lines are, below everything."""
    handles, labels = axes.get_legend_handles_labels()
    columns = min(columns, max(1, len(labels)))
    figure.legend(handles, labels, fontsize=size, frameon=False, ncols=columns, loc="outside lower center")


def checked(path: str | Path) -> Path:
    """Return the path of a picture; raise a `UserError` if it is of another kind."""
    path = Path(path)
    if path.suffix.lower() not in (".png", ".svg"):
        raise UserError(f"a figure is written as .png or .svg, not {path.name}")
    return path


def save(figure: Figure, path: str | Path, dpi: int = 200) -> None:
    """Write the figure. Texts in it are shown as they are: a `$` in a name begins no formula."""
    path = checked(path)
    for text in figure.findobj(Text):
        text.set_parse_math(False)
        if not text.get_text().isprintable():
            text.set_text("\n".join(map(one_line, text.get_text().split("\n"))))
    path.parent.mkdir(parents=True, exist_ok=True)
    # A fixed salt and no date: the same results make the same file.
    with rc_context({"svg.hashsalt": "us3l"}), replacing(path) as temporary:
        kind = path.suffix.lower()[1:]
        figure.savefig(temporary, format=kind, dpi=dpi, metadata={"Date": None} if kind == "svg" else None)
