"""Pictures for files. Imports matplotlib, so import this module late."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from us3l.errors import UserError
from us3l.evaluation.results import WidthResult
from us3l.report.tables import human

# Blue and vermilion of Okabe and Ito: told apart with any colour vision.
LINEAR, KNN = "#0072B2", "#D55E00"
INK = "#444444"

Pick = Callable[[WidthResult], float | None]
LINES: list[tuple[str, str, str, Pick, Pick]] = [
    ("linear probe", LINEAR, "o", lambda result: result.linear, lambda result: result.linear_untrained),
    ("kNN", KNN, "s", lambda result: result.knn, lambda result: result.knn_untrained),
]


def accuracy_figure(
    results: Sequence[WidthResult], path: str | Path, title: str = "Accuracy of one network at every width"
) -> None:
    """Draw accuracy against MACs, with the untrained floor dashed, into a PNG or SVG file (by the path's ending)."""
    path = Path(path)
    if path.suffix.lower() not in (".png", ".svg"):
        raise UserError(f"a figure is written as .png or .svg, not {path.name}")
    results = sorted(results, key=lambda result: result.macs)
    figure = Figure(figsize=(8, 5), layout=ConstrainedLayoutEngine(w_pad=0.15, h_pad=0.08))
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    size = 6 if len(results) <= 20 else 3
    for name, colour, marker, trained, untrained in LINES:
        style = {"color": colour, "marker": marker}
        _line(axes, results, trained, name, **style, linewidth=2.2, markersize=size)
        _line(
            axes, results, untrained, f"{name}, untrained", **style, linewidth=1.3, markersize=size / 2, linestyle="--"
        )
    if not axes.lines:
        raise UserError("nothing to draw: no width has an accuracy (are the images labelled?)")
    _dress(figure, axes, results, title)
    path.parent.mkdir(parents=True, exist_ok=True)
    # A fixed salt and no date: the same results make the same file.
    with rc_context({"svg.hashsalt": "us3l"}):
        figure.savefig(path, dpi=200, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)


def _line(axes: Axes, results: Sequence[WidthResult], pick: Pick, label: str, **style: Any) -> None:
    points = [(result.macs, value) for result in results if (value := pick(result)) is not None]
    if points:
        axes.plot(*zip(*points, strict=True), label=label, **style)


def _dress(figure: Figure, axes: Axes, results: Sequence[WidthResult], title: str) -> None:
    """Everything around the lines. MACs grow with the square of the width: a logarithmic axis spreads the widths."""
    figure.suptitle(title, x=0.02, ha="left", fontsize=13, fontweight="bold", wrap=True)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda macs, _: human(macs).replace(".00", "").replace(".0", "")))
    axes.xaxis.set_minor_locator(NullLocator())
    low, high = results[0].macs, results[-1].macs
    margin = (high / low) ** 0.06 if high > low else 2
    axes.set_xlim(low / margin, high * margin)
    axes.margins(y=0.08)
    axes.set_xlabel("MACs for one image (log scale)", fontsize=12, color=INK)
    axes.set_ylabel("top-1 accuracy (%)", fontsize=12, color=INK)

    # Widths stand above the points, on an axis of their own, where no line can run through them.
    labels = {result.macs: f"{result.width:.3g}x" for result in results}
    room = 0.0148 * max(map(len, labels.values()))  # of the axis, for the longest label
    labelled = _spread(list(labels), (high / low) ** room)
    top = axes.secondary_xaxis("top")
    top.set_xscale("log")
    top.set_xticks(labelled, [labels[macs] for macs in labelled])
    top.xaxis.set_minor_locator(NullLocator())
    top.set_xlabel("width", fontsize=12, color=INK, labelpad=6)
    for macs in labelled:
        axes.axvline(macs, color="#e4e4e4", linewidth=0.8, zorder=0)

    axes.grid(axis="y", color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)
    for spine in (*axes.spines.values(), *top.spines.values()):
        spine.set_visible(False)
    axes.tick_params(labelsize=11, colors=INK, length=0)
    top.tick_params(labelsize=10, colors=INK, length=0)
    figure.legend(*axes.get_legend_handles_labels(), fontsize=11, frameon=False, ncols=2, loc="outside lower center")


def _spread(macs: Sequence[int], ratio: float) -> list[int]:
    """Of rising MACs the largest and those below it that are at least `ratio` apart."""
    kept = [macs[-1]]
    for candidate in reversed(macs):
        if kept[-1] / candidate >= ratio and candidate != kept[-1]:
            kept.append(candidate)
    return kept
