"""Pictures for files. Imports matplotlib, so import this module late."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, LogLocator, MultipleLocator, NullLocator

from us3l.errors import UserError
from us3l.evaluation.results import WidthResult
from us3l.files import replacing
from us3l.report.tables import METRICS, human

# Of Okabe and Ito: told apart with any colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "osD^vP*"
LINEAR, KNN, FINETUNED = COLOURS[:3]
INK = "#444444"

Pick = Callable[[WidthResult], float | None]
LINES: list[tuple[str, str, str, Pick, Pick]] = [
    ("linear probe", LINEAR, "o", lambda result: result.linear, lambda result: result.linear_untrained),
    ("kNN", KNN, "s", lambda result: result.knn, lambda result: result.knn_untrained),
    ("fine-tuned", FINETUNED, "D", lambda result: result.finetuned, lambda _: None),
]
PANELS: list[tuple[str, Pick]] = [
    ("width", lambda result: result.width),
    ("MACs for one image (log scale)", lambda result: result.macs),
    ("parameters (log scale)", lambda result: result.params),
]


@dataclass(frozen=True)
class Line:
    """Results to be drawn as one line, by one of their accuracies."""

    label: str
    results: Sequence[WidthResult]
    metric: str


def accuracy_figure(
    results: Sequence[WidthResult], path: str | Path, title: str = "Accuracy of one network at every width"
) -> None:
    """Draw accuracy against MACs, with the untrained floor dashed, into a PNG or SVG file (by the path's ending)."""
    path = _checked(path)
    results = sorted(results, key=lambda result: result.macs)
    figure = new_figure(8, 5)
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
    save(figure, path)


def cost_figure(lines: Sequence[Line], path: str | Path, title: str) -> None:
    """Draw accuracy against width, MACs and parameters, side by side, for one run or several."""
    path = _checked(path)
    figure = new_figure(13, 5)
    panels = figure.subplots(1, len(PANELS), sharey=True)
    for axes, (name, place) in zip(panels, PANELS, strict=True):
        for number, line in enumerate(lines):
            points = sorted(
                (place(result), value) for result in line.results if (value := getattr(result, line.metric)) is not None
            )
            if points:
                axes.plot(*zip(*points, strict=True), label=line.label, linewidth=2, markersize=5, **style(number))
        if not axes.lines:
            raise UserError("nothing to draw: no width has an accuracy of that kind")
        if name == "width":
            axes.xaxis.set_major_locator(MultipleLocator(0.25))
        else:
            _log_scale(axes, [number for line in axes.lines for number in line.get_xdata()])
        axes.set_xlabel(name, fontsize=12, color=INK)
        plain(axes)
    panels[0].set_ylabel("top-1 accuracy (%)", fontsize=12, color=INK)
    figure.suptitle(title, x=0.02, ha="left", fontsize=13, fontweight="bold", wrap=True)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=11, frameon=False, ncols=min(4, len(labels)), loc="outside lower center")
    save(figure, path)


def lines_of(results: Sequence[WidthResult]) -> list[Line]:
    """A line for every kind of accuracy that was measured."""
    lines = [Line(name, results, metric) for metric, name in METRICS.items()]
    return [line for line in lines if any(getattr(result, line.metric) is not None for result in results)]


def _checked(path: str | Path) -> Path:
    path = Path(path)
    if path.suffix.lower() not in (".png", ".svg"):
        raise UserError(f"a figure is written as .png or .svg, not {path.name}")
    return path


def style(number: int) -> dict[str, Any]:
    """Of the lines of a picture, from 0: told apart by colour and marker, and beyond seven by their dashes."""
    turn, colour = divmod(number, len(COLOURS))
    return {"color": COLOURS[colour], "marker": MARKERS[colour], "linestyle": ("-", "--", ":")[turn % 3]}


def new_figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.15, h_pad=0.08))
    FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # A fixed salt and no date: the same results make the same file.
    with rc_context({"svg.hashsalt": "us3l"}), replacing(path) as temporary:
        kind = path.suffix.lower()[1:]
        figure.savefig(temporary, format=kind, dpi=200, metadata={"Date": None} if kind == "svg" else None)


def _line(axes: Axes, results: Sequence[WidthResult], pick: Pick, label: str, **style: Any) -> None:
    points = [(result.macs, value) for result in results if (value := pick(result)) is not None]
    if points:
        axes.plot(*zip(*points, strict=True), label=label, **style)


def _dress(figure: Figure, axes: Axes, results: Sequence[WidthResult], title: str) -> None:
    """Everything around the lines. MACs grow with the square of the width: a logarithmic axis spreads the widths."""
    figure.suptitle(title, x=0.02, ha="left", fontsize=13, fontweight="bold", wrap=True)
    low, high = results[0].macs, results[-1].macs
    _log_scale(axes, [low, high])
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

    plain(axes)
    for spine in top.spines.values():
        spine.set_visible(False)
    top.tick_params(labelsize=10, colors=INK, length=0)
    figure.legend(*axes.get_legend_handles_labels(), fontsize=11, frameon=False, ncols=2, loc="outside lower center")


def _log_scale(axes: Axes, values: Sequence[float]) -> None:
    """A logarithmic axis around these values, with numbers that people read."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: human(value).replace(".00", "").replace(".0", "")))
    axes.xaxis.set_minor_locator(NullLocator())
    low, high = min(values), max(values)
    margin = (high / low) ** 0.06 if high > low else 2
    axes.set_xlim(low / margin, high * margin)


def plain(axes: Axes) -> None:
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(labelsize=11, colors=INK, length=0)


def _spread(macs: Sequence[int], ratio: float) -> list[int]:
    """Of rising MACs the largest and those below it that are at least `ratio` apart."""
    kept = [macs[-1]]
    for candidate in reversed(macs):
        if kept[-1] / candidate >= ratio and candidate != kept[-1]:
            kept.append(candidate)
    return kept
