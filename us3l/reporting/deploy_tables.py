"""Tables about deploying: what widths cost on a device, which one fits budgets, and what was exported."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from us3l.costs import pareto
from us3l.deploy.accuracies import Accuracies
from us3l.deploy.deployment_settings import BUDGETS
from us3l.reporting.tables import human
from us3l.run.profiles import Latency, Profile

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from us3l.deploy.exporting import Exported
    from us3l.deploy.picking import Picked
    from us3l.deploy.proof import Proof

BACKEND_NAMES = {"torch": "PyTorch", "onnx": "ONNX Runtime", "openvino": "OpenVINO"}


def profile_table(profile: Profile, accuracies: Accuracies | None, batch: int) -> Table:
    """Return a row for each width that was timed with that batch size: "p50/p95" of each backend.

    With three backends it fits into 80 characters.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    headers = ["width", "params", "MACs", "size\nMB", "memory\nMB"]
    headers += [f"{accuracies.metric}\n%"] if accuracies else []
    headers += [f"{backend}\nms" for backend in profile.backends()]
    for header in headers:
        table.add_column(header, justify="right", no_wrap=True)
    timed = {(row.width, row.backend): row for row in profile.latencies if row.batch == batch}
    for costs in profile.costs:
        latencies = [timed.get((costs.width, backend)) for backend in profile.backends()]
        if not any(latencies):
            continue
        cells = [f"{costs.width:.4g}x", human(costs.params), human(costs.macs)]
        cells += [f"{costs.bytes / 1e6:.3g}", f"{costs.memory * batch / 1e6:.3g}"]
        if accuracies:
            percent = accuracies.percent.get(costs.width)
            cells.append("" if percent is None else f"{percent:.1f}")
        cells += [f"{short(row.p50_ms)}/{short(row.p95_ms)}" if row else "" for row in latencies]
        table.add_row(*cells)
    return table


def short(ms: float) -> str:
    """Return milliseconds as at most four characters, up to ten seconds.

    >>> short(0.7174), short(13.24), short(132.4)
    ('0.72', '13.2', '132')
    """
    return f"{ms:.2g}" if ms < 1 else f"{ms:.3g}" if ms < 1000 else f"{ms:.0f}"


def profile_figure(profile: Profile, accuracies: Accuracies | None, path: Path, title: str) -> None:
    """Draw accuracy (or else the width) against the median latency, one panel for each batch size, as PNG."""
    from us3l.reporting.style import INK, legend, new_figure, plain, save

    batches = profile.batches()
    figure = new_figure(max(8, 5.5 * len(batches)), 5, title)
    for axes, batch in zip(figure.subplots(1, len(batches), sharey=True, squeeze=False)[0], batches, strict=True):
        _panel(axes, profile, accuracies, [row for row in profile.latencies if row.batch == batch])
        plain(axes, f"latency of {batch} image{'s' * (batch > 1)}, median, ms (log scale)")
    figure.axes[0].set_ylabel(
        f"{accuracies.described}, %" if accuracies else "width (not evaluated)",
        fontsize=12,
        color=INK,
    )
    legend(figure, figure.axes[0])
    save(figure, path)


def _panel(axes: Axes, profile: Profile, accuracies: Accuracies | None, rows: Sequence[Latency]) -> None:
    from us3l.reporting.style import INK, line_style, log_ticks

    worth = accuracies.percent if accuracies else {row.width: float(row.width) for row in rows}
    rows = sorted((row for row in rows if row.width in worth), key=lambda row: row.width)
    for number, backend in enumerate(profile.backends()):
        line = [row for row in rows if row.backend == backend]
        times, values = [row.p50_ms for row in line], [worth[row.width] for row in line]
        label = BACKEND_NAMES.get(backend, backend)
        axes.plot(times, values, **line_style(number), linewidth=1.8, markersize=6, label=label)
    front = [rows[index] for index in pareto([(row.p50_ms, worth[row.width]) for row in rows])]
    points = [(row.p50_ms, worth[row.width]) for row in front]
    ring: dict[str, Any] = {"markerfacecolor": "none", "markeredgecolor": INK, "markeredgewidth": 1.2}
    axes.plot([x for x, _ in points], [y for _, y in points], "o", label="Pareto front", markersize=14, **ring)
    place: dict[str, Any] = {"xytext": (-9, 7), "textcoords": "offset points", "ha": "right"}
    for row, point in zip(front, points, strict=True):
        axes.annotate(f"{row.width:.3g}x", point, **place, fontsize=10, color=INK)
    log_ticks(axes)
    axes.margins(x=0.12, y=0.12)


def picked_table(picked: Picked) -> Table:
    """Return what the chosen width needs, the budgets, and what is left of them."""
    chosen, accuracies = picked.to_plain(), picked.accuracies
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for header in ("", "needs", "budget", "margin"):
        table.add_column(header, justify="right" if header else "left")
    for name, budget in chosen["budgets"].items():
        share = chosen["margins"][name] / budget
        style = "red" if share < 0 else ""
        table.add_row(BUDGETS[name], amount(chosen["figures"][name]), amount(budget), f"{share:+.1%}", style=style)
    if chosen["accuracy"] is not None:
        least = chosen["accuracy_at_least"]
        gap = [f"at least {least:g}", f"{chosen['accuracy'] - least:+.1f}"] if least is not None else ["", ""]
        name = "agreement, %" if accuracies and accuracies.metric == "agreement" else "accuracy, %"
        table.add_row(name, f"{chosen['accuracy']:.1f}", *gap, style="red" if gap[1].startswith("-") else "")
    return table


def amount(value: float) -> str:
    """Return a cost or a budget, short."""
    return human(value) if value >= 1000 else f"{value:.3g}"


def exported_table(exported: Exported) -> Table:
    """Return the files, what they cost, and how they were proved."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("file", overflow="fold")  # names may be long, but numbers must not be cut
    for header in ("size", "params", "MACs"):
        table.add_column(header, no_wrap=True)
    table.add_column("proof", min_width=len("differs by 0e-00"))
    for entry, proof in exported.networks:
        costs = (f"{entry.bytes / 1e6:.2f} MB", human(entry.params), human(entry.macs))
        table.add_row(next(iter(entry.files)), *costs, describe(proof))
    return table


def describe(proof: Proof) -> str:
    """Return a proof in a few words."""
    if proof.difference is not None:
        return f"differs by {proof.difference:.0e}"
    accuracy = f", {proof.judge} {proof.float_accuracy:.1f} -> {proof.int8_accuracy:.1f} %" if proof.judge else ""
    return f"cosine {proof.cosine:.4f}{accuracy}"
