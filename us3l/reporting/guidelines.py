"""The paper's argument in pictures: how guidance turns over training, and why."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

import torch
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from us3l.objective.losses import info_nce, unit
from us3l.paper.workspace import CellResult
from us3l.reporting import style as draw
from us3l.reporting.tables import TextTable
from us3l.run.training_log import Gauges

PANELS = {
    "turn": "how the guidance of 0.25x turns (0: as before, 1: at random)",
    "change": "the gradients' change, left side of eq. 9 and 10",
    "spread": "spread of the embeddings at 0.25x (0: collapse)",
}
LOSSES = ("MSE", "InfoNCE")
DASHES = {0: ":", 1: "-.", 2: "--", 3: "-"}
"""By the number of guidelines that a composition keeps."""


def guidelines_figure(
    runs: Mapping[str, Sequence[Gauges]], kept: Mapping[str, int], results: Sequence[CellResult], path: Path, title: str
) -> None:
    """Draw gauges over the epochs, and the accuracy in the end at every width.

    Each composition has a colour and a marker of its own; the more guidelines it keeps, the fuller is its line.
    """
    figure = draw.new_figure(13, 9.5, title)
    places = figure.subplots(2, 2).flatten()
    for number, (label, events) in enumerate(runs.items()):
        marker = draw.MARKERS[(number + number // 10) % 10]  # colours come again after ten, with other markers
        look = draw.line_style(number) | {"linestyle": DASHES[kept[label]], "marker": marker}
        look |= {"markersize": 5, "linewidth": 1.8}
        for place, gauge in zip(places, PANELS, strict=False):
            points = [(event.epoch, event.gauges["0.25"][gauge]) for event in events if gauge in event.gauges["0.25"]]
            if points:
                place.plot(*zip(*points, strict=True), label=label, **look)
        line = sorted(
            (result.cell.width, result.mean) for result in results if result.cell.label == label and result.mean
        )
        if line:
            number_kept = {0: "no guideline", 1: "one", 2: "two", 3: "all three"}[kept[label]]
            places[3].plot(*zip(*line, strict=True), label=f"{label} ({number_kept})", **look)
    for place, text in zip(places, (*PANELS.values(), "linear probe in the end, %"), strict=True):
        place.set_title(text, fontsize=11, color=draw.INK, loc="left")
        draw.plain(place, "width" if place is places[3] else "epoch")
        if place is not places[3]:
            place.set_ylim(bottom=0)
            place.xaxis.set_major_locator(MaxNLocator(integer=True))
    draw.legend(figure, places[3], columns=3, size=10)
    draw.save(figure, path)


def guidance_notes(
    runs: Mapping[str, Sequence[Gauges]], kept: Mapping[str, int], results: Sequence[CellResult]
) -> list[str | TextTable]:
    """Return how steady the guidance of 0.25x was over each run, as a table, and whether that explains its accuracy."""
    from scipy.stats import kendalltau

    head = "guidance of 0.25x, mean over the run", "guidelines kept", "turn", "change", "spread in the end", "linear"
    rows, accuracy_by_turn = [], []
    narrow = {result.cell.label: result for result in results if result.cell.width == 0.25}
    for label, events in runs.items():
        result, gauges = narrow[label], [event.gauges["0.25"] for event in events]
        turn, change, spread = mean_gauge(gauges, "turn"), mean_gauge(gauges, "change"), gauges[-1]["spread"]
        accuracy = "collapsed" if result.collapsed else f"{result.mean:.1f}"
        rows.append([label, str(kept[label]), f"{turn:.2f}", f"{change:.2f}", f"{spread:.2f}", accuracy])
        if not result.collapsed and math.isfinite(turn):
            accuracy_by_turn.append((turn, result.mean))
    notes: list[str | TextTable] = [TextTable(head, rows)]
    if len(accuracy_by_turn) > 2:
        tau = kendalltau(*zip(*accuracy_by_turn, strict=True)).statistic
        notes.append(
            f"Kendall's tau of the turn and the linear probe at 0.25x: {tau:+.2f} over the {len(accuracy_by_turn)} "
            "compositions that did not collapse (-1: the steadier the guidance, the better)."
        )
    return notes


def mean_gauge(measurements: Sequence[Mapping[str, float]], name: str) -> float:
    """Return the mean over the measurements that have it: the first has nothing to compare with."""
    values = [gauges[name] for gauges in measurements if name in gauges]
    return fmean(values) if values else math.nan


def rotated(degrees: float) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the paper's example: a teacher's outputs of three images, all turned by one angle in an iteration.

    The outputs in both iterations; and by each loss the gradients that students get who agree with the teacher, by
    autograd, without the constraint to unit length, as in Lemma 1.
    """
    before = unit(torch.tensor([[1.0, 0.15], [0.35, 1.0], [-0.85, 0.55]], dtype=torch.float64))
    cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    after = before @ torch.tensor([[cosine, sine], [-sine, cosine]], dtype=torch.float64)
    return {"outputs": (before, after)} | {loss: (gradient(loss, before), gradient(loss, after)) for loss in LOSSES}


def gradient(loss: str, teacher: Tensor, temperature: float = 0.5) -> Tensor:
    """Return the gradient of each image's loss: minus the target; InfoNCE adds the mean target by similarity."""
    student = teacher.clone().requires_grad_()
    value = -(student * teacher).sum() if loss == "MSE" else len(teacher) * info_nce(student, teacher, temperature)
    return torch.autograd.grad(value, student)[0] * (temperature if loss == "InfoNCE" else 1.0)


def rotation_figure(path: Path, degrees: float = 40.0) -> None:
    """Draw figure 3 of the paper: outputs turn together, and the gradients of MSE change more than those of InfoNCE."""
    title = f"One turn of all outputs by {degrees:g}° (pale: before): by InfoNCE, gradients change less than by MSE"
    figure = draw.new_figure(12, 4.6, title)
    places = figure.subplots(1, 3, subplot_kw={"aspect": "equal"})
    pairs = {}
    for name, (before, after) in rotated(degrees).items():
        change = (after - before).norm(dim=1).mean().item()
        pairs[f"gradients by {name}: changed by {change:.2f}" if name in LOSSES else name] = (before, after)
    for place, (text, (before, after)) in zip(places, pairs.items(), strict=True):
        for number, (first, second) in enumerate(zip(before.tolist(), after.tolist(), strict=True)):
            for end, alpha in ((first, 0.35), (second, 1.0)):
                arrow = {"arrowstyle": "-|>", "color": draw.COLOURS[number], "lw": 2.2, "alpha": alpha}
                place.annotate("", end, (0, 0), arrowprops=arrow)
            place.plot(*zip(first, second, strict=True), ":", color=draw.COLOURS[number], linewidth=1.5)
        place.set(xlim=(-1.15, 1.15), ylim=(-1.15, 1.15), xticks=[], yticks=[])
        place.set_title(text, fontsize=11, color=draw.INK)
        draw.plain(place)
    draw.save(figure, path)
