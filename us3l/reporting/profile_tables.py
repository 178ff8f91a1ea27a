"""A profile as a table and as a picture. Imports matplotlib, so import this module late."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from rich import box
from rich.table import Table

from us3l.deploy.evaluated import Accuracies
from us3l.deploy.profile import pareto
from us3l.reporting.palette import INK
from us3l.reporting.style import legend, line_style, log_ticks, new_figure, plain, save
from us3l.reporting.tables import human
from us3l.run.profiles import Latency, Profile

NAMES = {"torch": "PyTorch", "onnx": "ONNX Runtime", "openvino": "OpenVINO"}


def profile_table(profile: Profile, accuracies: Accuracies | None, batch: int) -> Table:
    """One row for each width that was timed with that batch size: "p50/p95" of each backend.

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
        found = [timed.get((costs.width, backend)) for backend in profile.backends()]
        if not any(found):
            continue
        cells = [f"{costs.width:.4g}x", human(costs.params), human(costs.macs)]
        cells += [f"{costs.bytes / 1e6:.3g}", f"{costs.memory * batch / 1e6:.3g}"]
        if accuracies:
            percent = accuracies.percent.get(costs.width)
            cells.append("" if percent is None else f"{percent:.1f}")
        cells += [f"{short(row.p50_ms)}/{short(row.p95_ms)}" if row else "" for row in found]
        table.add_row(*cells)
    return table


def short(ms: float) -> str:
    """At most four characters, up to ten seconds.

    >>> short(0.7174), short(13.24), short(132.4)
    ('0.72', '13.2', '132')
    """
    return f"{ms:.2g}" if ms < 1 else f"{ms:.3g}" if ms < 1000 else f"{ms:.0f}"


def profile_figure(profile: Profile, accuracies: Accuracies | None, path: Path, title: str) -> None:
    """Draw accuracy (or else the width) against the median latency, one panel for each batch size, as PNG."""
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
    worth = accuracies.percent if accuracies else {row.width: float(row.width) for row in rows}
    rows = sorted((row for row in rows if row.width in worth), key=lambda row: row.width)
    for number, backend in enumerate(profile.backends()):
        own = [row for row in rows if row.backend == backend]
        axes.plot(
            [row.p50_ms for row in own],
            [worth[row.width] for row in own],
            **line_style(number),
            linewidth=1.8,
            markersize=6,
            label=NAMES.get(backend, backend),
        )
    front = [rows[index] for index in pareto([(row.p50_ms, worth[row.width]) for row in rows])]
    axes.plot(
        [row.p50_ms for row in front],
        [worth[row.width] for row in front],
        linestyle="none",
        marker="o",
        markersize=14,
        markerfacecolor="none",
        markeredgecolor=INK,
        markeredgewidth=1.2,
        label="Pareto front",
    )
    for row in front:
        axes.annotate(
            f"{row.width:.3g}x",
            (row.p50_ms, worth[row.width]),
            xytext=(-9, 7),
            textcoords="offset points",
            ha="right",
            fontsize=10,
            color=INK,
        )
    log_ticks(axes)
    axes.margins(x=0.12, y=0.12)
