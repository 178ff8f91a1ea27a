"""Pictures of accuracies. Imports matplotlib, so import this module late."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator, NullLocator

from us3l.reporting.page import COLOURS
from us3l.reporting.style import INK, RULE, checked, legend, line_style, log_ticks, new_figure, plain, save
from us3l.reporting.tables import round_count
from us3l.run import Run
from us3l.run.evaluations import EVALUATIONS, METRICS, EvaluationRecord, WidthResult
from us3l.system.errors import UserError

LINEAR, KNN, FINETUNED = COLOURS[:3]

Quantity = Callable[[WidthResult], float | None]


def _percent(metric: str) -> Quantity:
    return lambda result: result.percent(metric)


def _untrained(metric: str) -> Quantity:
    return lambda result: result.untrained.get(metric)


LINES: list[tuple[str, str, str, Quantity, Quantity]] = [
    ("linear probe", LINEAR, "o", _percent("linear"), _untrained("linear")),
    ("kNN", KNN, "s", _percent("knn"), _untrained("knn")),
    ("fine-tuned", FINETUNED, "D", _percent("finetuned"), _untrained("finetuned")),
]
PANELS: list[tuple[str, Quantity]] = [
    ("width", lambda result: float(result.width)),
    ("MACs per image (log scale)", lambda result: result.cost.macs),
    ("parameters (log scale)", lambda result: result.cost.params),
]


@dataclass(frozen=True)
class Line:
    """Results to be drawn as one line, by one of their accuracies."""

    label: str
    results: Sequence[WidthResult]
    metric: str


def evaluation_figures(run: Run, record: EvaluationRecord) -> Path:
    """Draw the accuracies of an evaluation, if it has any, beside its file, as .png and -costs.png.

    Returns:
        The path of all three files without their endings.
    """
    base = EVALUATIONS.file(run, record.name).with_suffix("")
    if record.metric is None:
        return base
    title = f"{record.name}: {record.train_images:,} images to learn from, {record.test_images:,} to test"
    accuracy_figure(record.widths, f"{base}.png", title)
    cost_figure(lines_of(record.widths), f"{base}-costs.png", title)
    return base


def accuracy_figure(
    results: Sequence[WidthResult], path: str | Path, title: str = "Accuracy of one network at every width"
) -> None:
    """Draw accuracy against MACs, with the untrained floor dashed, into a PNG or SVG file (by the path's ending)."""
    path = checked(path)
    results = sorted(results, key=lambda result: result.cost.macs)
    figure = new_figure(8, 5, title)
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
    _dress(figure, axes, results)
    save(figure, path)


def cost_figure(lines: Sequence[Line], path: str | Path, title: str) -> None:
    """Draw accuracy against width, MACs and parameters, side by side, for one run or several."""
    path = checked(path)
    figure = new_figure(13, 5, title)
    panels = figure.subplots(1, len(PANELS), sharey=True)
    for axes, (name, place) in zip(panels, PANELS, strict=True):
        for number, line in enumerate(lines):
            points = sorted(
                (place(result), value) for result in line.results if (value := result.percent(line.metric)) is not None
            )
            if points:
                axes.plot(*zip(*points, strict=True), label=line.label, linewidth=2, markersize=5, **line_style(number))
        if not axes.lines:
            raise UserError("nothing to draw: no width has an accuracy of that kind")
        if name == "width":
            axes.xaxis.set_major_locator(MultipleLocator(0.25))
        else:
            _log_scale(axes, [number for line in axes.lines for number in line.get_xdata()])
        plain(axes, name)
    panels[0].set_ylabel("top-1 accuracy (%)", fontsize=12, color=INK)
    legend(figure, panels[0])
    save(figure, path)


def lines_of(results: Sequence[WidthResult]) -> list[Line]:
    """Return a line for every kind of accuracy that was measured."""
    lines = [Line(name, results, metric) for metric, name in METRICS.items()]
    return [line for line in lines if any(line.metric in result.scores for result in results)]


def _line(axes: Axes, results: Sequence[WidthResult], pick: Quantity, label: str, **style: Any) -> None:
    points = [(result.cost.macs, value) for result in results if (value := pick(result)) is not None]
    if points:
        axes.plot(*zip(*points, strict=True), label=label, **style)


def _dress(figure: Figure, axes: Axes, results: Sequence[WidthResult]) -> None:
    """Draw what is around the lines. MACs grow with the square of the width: a logarithmic axis spreads them."""
    low, high = results[0].cost.macs, results[-1].cost.macs
    _log_scale(axes, [low, high])
    axes.margins(y=0.08)
    plain(axes, "MACs per image (log scale)", "top-1 accuracy (%)")

    # Widths stand above the points, on an axis of their own, where no line can run through them.
    labels = {result.cost.macs: f"{result.width:.3g}x" for result in results}
    room = 0.0148 * max(map(len, labels.values()))  # of the axis, for the longest label
    labelled = _spread(list(labels), (high / low) ** room)
    top = axes.secondary_xaxis("top")
    top.set_xscale("log")
    top.set_xticks(labelled, [labels[macs] for macs in labelled])
    top.xaxis.set_minor_locator(NullLocator())
    top.set_xlabel("width", fontsize=12, color=INK, labelpad=6)
    for macs in labelled:
        axes.axvline(macs, color=RULE, linewidth=0.8, zorder=0)

    for spine in top.spines.values():
        spine.set_visible(False)
    top.tick_params(labelsize=10, colors=INK, length=0)
    legend(figure, axes, columns=2)


def _log_scale(axes: Axes, values: Sequence[float]) -> None:
    """Make the axis logarithmic around these values, with numbers that people read."""
    log_ticks(axes, round_count)
    low, high = min(values), max(values)
    margin = (high / low) ** 0.06 if high > low else 2
    axes.set_xlim(low / margin, high * margin)


def _spread(macs: Sequence[int], ratio: float) -> list[int]:
    """Return, of rising MACs, the largest and those below it that are at least `ratio` apart."""
    kept = [macs[-1]]
    for candidate in reversed(macs):
        if kept[-1] / candidate >= ratio and candidate != kept[-1]:
            kept.append(candidate)
    return kept
