"""What a search found, as a table and a picture. Drawing imports matplotlib late."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from us3l.deploy.pick import BUDGETS
from us3l.reporting.palette import COLOURS, INK
from us3l.reporting.tables import human, round_count
from us3l.run.searches import ScoredNetwork, SearchRecord
from us3l.width import Width

SHOWN = 12
BARS = "▁▂▃▄▅▆▇█"


def bars(width: Width, blocks: Sequence[int]) -> str:
    """A little bar for each block that a stage has, as high as its width; stages stand apart if they have several.

    >>> bars(Width((0.25, 1.0)), (1, 1)), bars(Width((0.25, 1.0), (2, 1)), (2, 2)), bars(Width(0.5), (2, 2))
    ('▂█', '▂▂ █', '▄▄ ▄▄')
    """
    widths = width.widths * len(blocks) if width.plain else width.widths
    stages = zip(widths, width.depths or blocks, strict=True)
    return (" " if max(blocks) > 1 else "").join(BARS[max(0, round(8 * w) - 1)] * depth for w, depth in stages)


def search_table(record: SearchRecord) -> Table:
    """The networks that were scored twice, and those on the front, the best first."""
    table = Table(box=None, pad_edge=False)
    for name in ("stages", "width"):
        table.add_column(name)
    for name in ("score, %", "other images", "MACs", "params", *(["ms", "measured"] if timed(record) else []), ""):
        table.add_column(name, justify="right")
    for one in shown(record):
        cells = [f"{one.score:.1f}", "" if one.confirmed is None else f"{one.confirmed:.1f}"]
        cells += [human(one.figures["macs"]), human(one.figures["params"])]
        if timed(record):
            ms = one.measured_ms
            cells += [f"{one.figures['latency_ms']:.3g}", "" if ms is None else f"{ms:.3g}"]
        best = "best" if one.width == record.best else ""
        table.add_row(bars(one.width, blocks_of(record)), f"{one.width:g}x", *cells, best)
    return table


def search_facts(record: SearchRecord) -> dict[str, Any]:
    """A search for the page: what came out, the fronts, and the networks, drawn as a bar for each stage."""
    kind = record.figure

    def points(front: list[ScoredNetwork]) -> list[list[Any]]:
        return [[one.figures[kind], one.score, f"{one.width:g}x"] for one in front]

    series = [
        {"name": "searched: no cheaper network has this score", "points": points(record.front())},
        {"name": "plain widths", "points": points(record.front(uniform=True))},
    ]
    axis = {"label": BUDGETS[kind], "kind": "ms" if kind == "latency_ms" else "count", "log": True}
    about = f"budget: {BUDGETS[kind]} of {record.budgets[kind]:g}; {record.images} unlabelled images of {record.data}"
    title = f"Agreement with the full network, against {BUDGETS[kind]}"
    agreement = {"label": "agreement", "kind": "percent"}
    columns = {"width": "width", "stages": "text", "score": "percent", "other images": "percent", "MACs": "count"}
    columns |= {"parameters": "count"} | ({"measured": "ms"} if timed(record) else {})
    rows = []
    for one in shown(record):
        row = [one.width.as_plain(), bars(one.width, blocks_of(record)), one.score, one.confirmed]
        rows.append([*row, one.figures["macs"], one.figures["params"], *([one.measured_ms] if timed(record) else [])])
    return {
        "name": record.name,
        "about": told(record),
        "chart": {"title": title, "about": about, "x": axis, "y": agreement, "series": series},
        "table": {"columns": [{"name": name, "kind": kind} for name, kind in columns.items()], "rows": rows},
    }


def shown(record: SearchRecord) -> list[ScoredNetwork]:
    """The networks that were scored twice, and as many as have room of those on the front, the best first."""
    finalists = [one for one in record.networks if one.confirmed is not None]
    front = [one for one in reversed(record.front()) if one not in finalists]
    return sorted(finalists + front[: SHOWN - len(finalists)], key=lambda one: -one.score)


def blocks_of(record: SearchRecord) -> tuple[int, ...]:
    """How many bars each stage has at most: its blocks, or one if none are left out anywhere."""
    found = [one.width for one in record.networks if not one.width.plain]
    deep = [width.depths for width in found if width.depths]
    return tuple(map(max, zip(*deep, strict=True))) if deep else (1,) * max((len(w.widths) for w in found), default=1)


def timed(record: SearchRecord) -> bool:
    return "latency_ms" in record.budgets


def told(record: SearchRecord) -> str:
    """What came out, in a sentence or two."""
    best, plain = record.at(record.best), best_plain(record)
    assert best is not None
    text = f"{record.best:g}x: the best within the budget, by agreement with the full network on {record.data}"
    if not record.fits:
        text = f"none of the best keeps the latency as measured; {record.best:g}x is the fastest of them"
    if best.uniform:
        text += "; no sub-network whose stages differ is better"
    elif plain is not None:
        text += f"; the plain width {plain.width:g}x has {plain.confirmed:.1f} %, it has {best.confirmed:.1f} %"
    return text


def best_plain(record: SearchRecord) -> ScoredNetwork | None:
    """The plain width among the finalists, if there is one."""
    return next((one for one in record.networks if one.uniform and one.confirmed is not None), None)


def search_figure(record: SearchRecord, path: Path) -> None:
    """Draw the scores against the cost that has a budget: plain widths, and what was found."""
    from us3l.reporting.style import legend, log_ticks, new_figure, plain, save

    figure = new_figure(8, 5, f"{record.name}: {len(record.networks)} sub-networks, {record.images} images")
    axes = figure.subplots()
    kind = record.figure
    cloud = [one for one in record.networks if not one.uniform]
    axes.plot(
        [o.figures[kind] for o in cloud], [o.score for o in cloud], "o", color=COLOURS[0], alpha=0.25, markersize=4
    )
    for number, (name, front) in enumerate((("searched", record.front()), ("plain widths", record.front(True)))):
        points = [(one.figures[kind], one.score) for one in front]
        axes.plot(*zip(*points, strict=True), "o-", color=COLOURS[number], label=name, linewidth=2, markersize=5)
    axes.axvline(record.budgets[kind], color=INK, linewidth=1, linestyle=":", label="budget")
    axes.set_ylabel("agreement with the full network, %", fontsize=12, color=INK)
    plain(axes, f"{BUDGETS[kind]} (log scale)")
    log_ticks(axes, round_count if kind in ("macs", "params") else "{:g}".format)
    if best := record.at(record.best):
        place, away = (best.figures[kind], best.score), (-8, 8)
        axes.annotate(f"{best.width:g}x", place, away, textcoords="offset points", ha="right", fontsize=11, color=INK)
    legend(figure, axes)
    save(figure, path)
