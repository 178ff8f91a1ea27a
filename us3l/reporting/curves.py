"""How a run was trained, as charts.

A chart is a dictionary with `title`, `about`, the axes `x` and `y` (`label`, and `kind` of number) and `series` of
points. The kinds are those that page.js knows how to write.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from us3l.run.training_log import Gauges, Record, StepRecord
from us3l.training.recipes import Recipe
from us3l.width import Width

POINTS = 120  # of a curve at most; more steps are averaged
FEW = 5  # widths that get a curve each; more are put together by quarters
GAUGES = {
    "knn": ("kNN accuracy", "On training images, by their labels: for people only, nothing learns from it.", "percent"),
    "spread": ("Collapse", "The spread of the embeddings: 1 is even, 0 is collapsed.", "number"),
    "rankme": ("RankMe", "How many directions the features use. Without labels.", "count"),
    "lidar": ("LiDAR", "How many directions tell images apart, whatever their random views. Without labels.", "count"),
    "agreement": ("Agreement with 1x", "The share of neighbours that are the same at 1x. Without labels.", "percent"),
    "turn": (
        "Consistency: turn",
        "How the guidance of an image changed since the last look. 0: not at all; 1: as if images had been exchanged.",
        "number",
    ),
    "change": ("Consistency: change", "The mean length of that change (equations 9 and 10 of the paper).", "number"),
}
RESEARCH = ("turn", "change")
"""Gauges that serve the study of methods: on the page they are folded away."""

Facts = dict[str, Any]
Point = tuple[float, float]


def loss_curves(steps: Sequence[StepRecord], recipe: Recipe) -> list[Facts]:
    """Return the full network's loss, that of the sub-networks by width, and the learning rate."""
    if not steps:
        return []
    objective = recipe.objective
    full = {"name": "full network", "points": thinned([(step.step, step.losses[0]) for step in steps])}
    names = grouped(width for step in steps for width in step.widths[1:])
    by_group: dict[str, list[Point]] = {name: [] for name in names.values()}
    for step in steps:
        for width, loss in zip(step.widths[1:], step.losses[1:], strict=True):
            by_group[names[width]].append((step.step, loss))
    rates = {"name": "learning rate", "points": thinned([(step.step, step.lr) for step in steps])}
    x, y = {"label": "step", "kind": "step"}, {"label": "loss", "kind": "number"}
    base, sub = (" + ".join(term.name for term in terms) for terms in (objective.base_terms, objective.sub_terms))
    charts = [chart("Loss of the full network", f"Base loss: {base}.", x, y, [full])]
    if by_group:
        series = [{"name": name, "points": thinned(points)} for name, points in by_group.items()]
        charts.append(
            chart(
                "Loss of the sub-networks",
                f"Distillation loss: {sub}, by width.",
                x,
                y,
                series,
            )
        )
    about = f"{recipe.optimiser.algorithm}, batches of {recipe.batch_size}."
    return [*charts, chart("Learning rate", about, x, {"label": "learning rate", "kind": "number"}, [rates])]


def gauge_curves(records: Sequence[Record]) -> list[Facts]:
    """One chart for each gauge that was read, one curve for each width."""
    charts = []
    for gauge, (title, about, kind) in GAUGES.items():
        curves: dict[str, list[list[float]]] = {}
        for look in (record for record in records if isinstance(record, Gauges)):
            for width, values in look.gauges.items():
                if gauge in values and math.isfinite(values[gauge]):
                    curves.setdefault(f"{width}x", []).append([look.step, short(values[gauge])])
        if curves:
            y = {"label": gauge, "kind": kind, "range": [0, 100 if kind == "percent" else 1]}
            series = [{"name": name, "points": points} for name, points in curves.items()]
            one = chart(title, about, {"label": "step", "kind": "step"}, y, series)
            charts.append(one | {"fold": gauge in RESEARCH})
    return charts


def chart(title: str, about: str, x: Facts, y: Facts, series: list[Facts]) -> Facts:
    return {"title": title, "about": about, "x": x, "y": y, "series": series}


def grouped(widths: Iterable[Width]) -> dict[Width, str]:
    """Return a name for each width's group, widest first: its own if there are few, else those from quarter to quarter.

    >>> grouped([1.0, 0.5, 1.0])
    {1.0: '1x', 0.5: '0.5x'}
    >>> list(dict.fromkeys(grouped([0.25, 0.3, 0.4, 0.5, 0.6, 0.75, 0.9, 1.0]).values()))
    ['0.9x to 1x', '0.6x to 0.75x', '0.3x to 0.5x', '0.25x']
    """
    distinct = sorted(set(widths), reverse=True)
    if len(distinct) <= FEW:
        return {width: f"{width:g}x" for width in distinct}
    quarters: dict[int, list[Width]] = {}
    for width in distinct:
        quarters.setdefault(math.ceil(4 * float(width)), []).append(width)
    names = {
        q: f"{min(some):g}x to {max(some):g}x" if len(some) > 1 else f"{some[0]:g}x" for q, some in quarters.items()
    }
    return {width: names[math.ceil(4 * float(width))] for width in distinct}


def thinned(points: Sequence[Point], count: int = POINTS) -> list[list[float]]:
    """Return at most `count` points: means over equal parts of the range of steps.

    >>> thinned([(0, 1.0), (1, 3.0), (2, 5.0), (3, 7.0)], count=2)
    [[0.5, 2.0], [2.5, 6.0]]
    """
    if len(points) <= count:
        return [[x, short(y)] for x, y in points]
    x, y = np.array(points, float).T  # whole numbers may be of any size
    part = np.minimum(((x - x.min()) / (np.ptp(x) or 1) * count).astype(int), count - 1)
    sizes = np.bincount(part)
    filled = np.flatnonzero(sizes)
    means = (np.bincount(part, weights=values)[filled] / sizes[filled] for values in (x, y))
    return [[short(a), short(b)] for a, b in zip(*means, strict=True)]


def short(value: float) -> float:
    """Return a number with five digits, which are enough for a picture."""
    return float(f"{value:.5g}")
