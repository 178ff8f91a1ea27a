"""What a search found, as a table and a picture. Drawing imports matplotlib late."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from us3l.deploy.deployment_settings import BUDGETS
from us3l.reporting.tables import round_count, show
from us3l.run.searches import ScoredNetwork, SearchRecord
from us3l.width import Width

SHOWN = 12
BARS = "▁▂▃▄▅▆▇█"


def bars(width: Width, blocks: Sequence[int]) -> str:
    """Return a little bar for each block of each stage, as high as its width; stages of several blocks stand apart.

    >>> bars(Width((0.25, 1.0)), (1, 1)), bars(Width((0.25, 1.0), (2, 1)), (2, 2)), bars(Width(0.5), (2, 2))
    ('▂█', '▂▂ █', '▄▄ ▄▄')
    """
    widths = width.widths * len(blocks) if width.plain else width.widths
    stages = zip(widths, width.depths or blocks, strict=True)
    return (" " if max(blocks) > 1 else "").join(BARS[max(0, round(8 * w) - 1)] * depth for w, depth in stages)


def network_table(record: SearchRecord) -> tuple[dict[str, str], list[list[Any]]]:
    """Return the columns, each with its kind, and a row for each network that is shown, the best first."""
    columns = {"stages": "text", "width": "width", "score, %": "percent", "other images": "percent"}
    columns |= {"MACs": "count", "params": "count"} | ({"ms": "ms", "measured": "ms"} if timed(record) else {})
    rows = []
    for network in shown(record):
        figures = network.figures
        row = [bars(network.width, blocks_of(record)), network.width, network.score, network.confirmed]
        row += [figures["macs"], figures["params"]]
        rows.append([*row, figures["latency_ms"], network.measured_ms] if timed(record) else row)
    return columns, rows


def search_table(record: SearchRecord) -> Table:
    """Return the networks that were scored twice, and those on the front, the best first."""
    columns, rows = network_table(record)
    table = Table(box=None, pad_edge=False)
    for name in (*columns, ""):
        table.add_column(name, justify="left" if name in ("stages", "width") else "right")
    for row in rows:
        cells = [show(kind, value) for kind, value in zip(columns.values(), row, strict=True)]
        table.add_row(*cells, "best" if row[1] == record.best else "")
    return table


def search_facts(record: SearchRecord) -> dict[str, Any]:
    """Return a search for the page: what came out, the fronts, and the networks, drawn as a bar for each stage."""
    kind = record.figure

    def points(front: list[ScoredNetwork]) -> list[list[Any]]:
        return [[network.figures[kind], network.score, f"{network.width:g}x"] for network in front]

    series = [
        {"name": "searched: no cheaper network has this score", "points": points(record.front())},
        {"name": "plain widths", "points": points(record.front(uniform=True))},
    ]
    axis = {"label": BUDGETS[kind], "kind": "ms" if kind == "latency_ms" else "count", "log": True}
    about = f"budget: {BUDGETS[kind]} of {record.budgets[kind]:g}; {record.images} unlabelled images of {record.data}"
    title = f"Agreement with the full network, against {BUDGETS[kind]}"
    agreement = {"label": "agreement", "kind": "percent"}
    columns, rows = network_table(record)
    heads = [{"name": name.removesuffix(", %"), "kind": kind} for name, kind in columns.items()]
    return {
        "name": record.name,
        "about": outcome(record),
        "chart": {"title": title, "about": about, "x": axis, "y": agreement, "series": series},
        "table": {"columns": heads, "rows": [[row[0], row[1].as_plain(), *row[2:]] for row in rows]},
    }


def shown(record: SearchRecord) -> list[ScoredNetwork]:
    """Return the networks that were scored twice, and as many as have room of those on the front, the best first."""
    finalists = [network for network in record.networks if network.confirmed is not None]
    front = [network for network in reversed(record.front()) if network not in finalists]
    return sorted(finalists + front[: SHOWN - len(finalists)], key=lambda network: -network.score)


def blocks_of(record: SearchRecord) -> tuple[int, ...]:
    """Return how many bars each stage has at most: its blocks, or one if none are left out anywhere."""
    widths = [network.width for network in record.networks if not network.width.plain]
    deep = [width.depths for width in widths if width.depths]
    return tuple(map(max, zip(*deep, strict=True))) if deep else (1,) * max((len(w.widths) for w in widths), default=1)


def timed(record: SearchRecord) -> bool:
    """Return whether latency was a budget."""
    return "latency_ms" in record.budgets


def outcome(record: SearchRecord) -> str:
    """Return what came out, in a sentence or two."""
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
    """Return the plain width among the finalists, if there is one."""
    return next((network for network in record.networks if network.uniform and network.confirmed is not None), None)


def search_figure(record: SearchRecord, path: Path) -> None:
    """Draw the scores against the cost that has a budget: plain widths, and what was found."""
    from us3l.reporting.style import COLOURS, INK, legend, log_ticks, new_figure, plain, save

    figure = new_figure(8, 5, f"{record.name}: {len(record.networks)} sub-networks, {record.images} images")
    axes = figure.subplots()
    kind = record.figure
    cloud = [(network.figures[kind], network.score) for network in record.networks if not network.uniform]
    costs, scores = [cost for cost, _ in cloud], [score for _, score in cloud]
    axes.plot(costs, scores, "o", color=COLOURS[0], alpha=0.25, markersize=4)
    for number, (name, front) in enumerate((("searched", record.front()), ("plain widths", record.front(True)))):
        points = [(network.figures[kind], network.score) for network in front]
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
