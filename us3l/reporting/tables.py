"""Results as tables: for the terminal, and as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from us3l.evaluation.compare_runs import Comparison
from us3l.evaluation.scoring import Confidence
from us3l.run.evaluations import METRICS, QUALITIES, FewLabels, RetrievalRecord, WidthResult
from us3l.width import Width


def human(count: float) -> str:
    """Return a number as three significant digits and a unit.

    >>> human(11_173_962), human(556_651_520), human(950)
    ('11.2 M', '557 M', '950')
    """
    units = iter(("", " k", " M", " G", " T"))
    unit = next(units)
    while count >= 999.5 and unit != " T":  # 999.5 would round to 1000
        count, unit = count / 1000, next(units)
    return f"{count:#.3g}".rstrip(".") + unit if unit else f"{count:.0f}"


def round_count(count: float) -> str:
    """Return a round number, as ticks of pictures have, as digits and a unit.

    >>> round_count(2e6), round_count(500)
    ('2 M', '500')
    """
    return human(count).replace(".00", "").replace(".0", "")


def with_deviation(mean: float, deviation: float | None) -> str:
    """Return a mean with one digit, and its deviation over seeds if there were several.

    >>> with_deviation(61.24, 0.9), with_deviation(61.24, None)
    ('61.2 ± 0.9', '61.2')
    """
    return f"{mean:.1f}" + ("" if deviation is None else f" ± {deviation:.1f}")


def show(kind: str, value: Any) -> str:
    """Return a number of a kind that the page knows (see `curves`) as the terminal shows it; None is nothing.

    >>> show("percent", 61.24), show("count", 11_173_962), show("ms", None)
    ('61.2', '11.2 M', '')
    """
    if value is None:
        return ""
    formats = {"percent": "{:.1f}", "number": "{:.1f}", "ms": "{:.3g}", "width": "{:g}x"}
    return human(value) if kind == "count" else formats.get(kind, "{}").format(value)


@dataclass(frozen=True)
class TextTable:
    """A table of texts; `str` makes it Markdown."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __str__(self) -> str:
        lines = [self.head, ["---"] * len(self.head), *self.rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    @property
    def for_terminal(self) -> Table:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for name in self.head:
            table.add_column(name, overflow="fold")
        for row in self.rows:
            table.add_row(*(cell.replace("**", "") for cell in row))
        return table


# Evaluations


@dataclass(frozen=True)
class Column:
    """A column of the table of an evaluation, in the terminal and on the page of a run."""

    name: str
    """As in `WidthResult.row`; or with _gain at its end, for the difference to the untrained network."""
    title: str
    """On the page."""
    kind: str
    """The kind of number: see `curves`."""
    header: str
    """In the terminal, where there is less room."""
    style: str = ""
    """In the terminal."""

    def value(self, result: WidthResult) -> Any:
        """Return what was measured, as a plain value; None if it was not."""
        metric, _, gain = self.name.partition("_")
        if gain != "gain":
            return result.row[self.name]
        accuracy, floor = result.percent(metric), result.untrained.get(metric)
        return None if accuracy is None or floor is None else accuracy - floor

    def text(self, result: WidthResult) -> str:
        """Return what the terminal shows: an accuracy with the half-width of its 95 % interval, as in "61.2 ±0.9"."""
        value = self.value(result)
        if self.kind == "width":
            return f"{result.width:.4g}x"
        if value is not None and self.name.endswith("_gain"):
            return f"{value:+.1f}"
        score = result.scores.get(self.name)
        return show(self.kind, value) + (f" ±{(score.high - score.low) / 2:.1f}" if score else "")


def _accuracy(metric: str, header: str) -> list[Column]:
    """Return the columns of a kind of accuracy: itself, and beside the network that training began with."""
    name = METRICS[metric]
    return [
        Column(metric, name, "percent", f"{header}\n%", "bold"),
        Column(f"{metric}_untrained", f"{name}, untrained", "percent", "un-\ntrained", "dim"),
        Column(f"{metric}_gain", f"{name}, gain", "percent", "gain", "green"),
    ]


COLUMNS = [
    Column("width", "width", "width", "width", "bold"),
    Column("params", "parameters", "count", "params"),
    Column("macs", "MACs", "count", "MACs"),
    *_accuracy("knn", "kNN"),
    *_accuracy("linear", "linear"),
    *_accuracy("finetuned", "fine-\ntuned"),
    *(
        Column(f"{metric}_top5", f"{METRICS[metric]}, top 5", "percent", f"{header}\ntop-5 %")
        for metric, header in (("knn", "kNN"), ("linear", "linear"), ("finetuned", "fine-tuned"))
    ),
    Column("rankme", QUALITIES["rankme"], "number", "RankMe", "bold"),
    Column("lidar", QUALITIES["lidar"], "number", "LiDAR", "bold"),
    Column("agreement", QUALITIES["agreement"], "percent", "agreement\nwith 1x %", "bold"),
]
KINDS = {column.name: column.kind for column in COLUMNS}
ROOM = 80
"""Characters of a line in a terminal."""
LEAST_NEEDED = (
    *("agreement", "lidar", "rankme"),
    *(f"{metric}{end}" for end in ("_top5", "_untrained", "_gain") for metric in reversed(METRICS)),
)
"""What is left out of the terminal's table where there is no room, from the first on. A column that is not named here
always stays, and pushes these out."""


def shown_columns(results: Sequence[WidthResult]) -> list[Column]:
    """Return the columns that have any number."""
    return [column for column in COLUMNS if any(column.value(result) is not None for result in results)]


def results_table(results: Sequence[WidthResult], title: str | None = None) -> Table:
    """Return a table with a row per width; each accuracy stands beside its untrained floor and the gain over it.

    Columns without any number are left out, and so are the least needed ones until 80 characters are enough; a line
    beneath the table names these. Print it by `rich.console.Console().print(...)`.

    Args:
        results: What was measured at each width.
        title: Above the table.
    """
    measured = shown_columns(results)
    columns = measured
    for name in ("", *LEAST_NEEDED):
        columns = [column for column in columns if column.name != name]
        table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
        for column in columns:
            table.add_column(column.header, column.style, justify="right", no_wrap=True)
        for result in results:
            table.add_row(*(column.text(result) for column in columns))
        if Console(width=10 * ROOM).measure(table).maximum <= ROOM:
            break
    if left_out := "; ".join(column.title for column in measured if column not in columns):
        table.caption, table.caption_justify = f"no room here for {left_out}: see the file or the page", "left"
    return table


WITHOUT_LABELS = (
    "without labels: RankMe and LiDAR count the directions that features use (at most the channels, so compare runs "
    "at one width); agreement is the share of neighbours that are the same at 1x"
)


def uncertainty(results: Sequence[WidthResult], images: int) -> str:
    """Return one line on how far the accuracies can be trusted."""
    scores = [score for result in results for score in result.scores.values()]
    text = f"± is the 95 % interval for {images:,} test images; other seeds of the pre-training may differ by more"
    deviations = [score.deviation for score in scores if score.deviation is not None]
    return text + (f"; deviation over {scores[0].seeds} seeds at most {max(deviations):.1f}" if deviations else "")


def few_labels_table(results: Sequence[FewLabels]) -> Table:
    """Return a table with a row per width and a column per share of the labels: linear probe, deviation over seeds."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("width", "bold", justify="right")
    for share, images in {result.share: result.images for result in results}.items():
        table.add_column(f"{share:.3g} of them\n{images:,} images", justify="right")
    for width in dict.fromkeys(result.width for result in results):
        scores = [result.linear for result in results if result.width == width]
        table.add_row(f"{width:.4g}x", *(with_deviation(score.top1, score.deviation) for score in scores))
    return table


def comparison_table(comparison: Comparison) -> Table:
    """Return a table with a row per width and a column per run or group of seeds, with the difference to the first."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("width", "bold", justify="right")
    for place, group in enumerate(comparison.groups):
        seeds = f"\n{len(group.records)} seeds" if len(group.records) > 1 else ""
        table.add_column(f"{group.name}{seeds}", justify="right")
        if place:
            table.add_column("+/-", "dim", justify="right")
    columns = [group.results(comparison.metric) for group in comparison.groups]
    for width in comparison.widths:
        scores = [column[width].scores[comparison.metric] if width in column else None for column in columns]
        cells = []
        for place, score in enumerate(scores):
            cells.append(with_deviation(score.top1, score.deviation) if score else "")
            if place:
                cells.append(f"{score.top1 - scores[0].top1:+.1f}" if score and scores[0] else "")
        table.add_row(f"{width:.4g}x", *cells)
    return table


# Collections


def retrieval_table(record: RetrievalRecord, metric: str) -> Table:
    """Return a table with a row per query width and a column per gallery width.

    Args:
        record: What was measured.
        metric: "recall" or "knn".
    """
    cells = {(f"{row.query:g}x", f"{row.gallery:g}x"): getattr(row, metric) for row in record.rows}
    widths = list(dict.fromkeys(gallery for _, gallery in cells))
    table = Table("query", *widths, box=box.SIMPLE_HEAD, pad_edge=False)
    for query in dict.fromkeys(query for query, _ in cells):
        values = [cells[query, gallery] for gallery in widths]
        table.add_row(query, *("" if value is None else f"{value:.1f}" for value in values))
    return table


def matches_table(rows: Sequence[Mapping[str, Any]], most: int) -> Table:
    """Return a table with a line per image that was found, of the first queries only.

    Args:
        rows: With `query`, `file`, `similarity` and perhaps `label`.
        most: Queries to show.
    """
    labelled = any("label" in row for row in rows)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for header in ("query", "similarity", "image", *(["label"] if labelled else [])):
        table.add_column(header, justify="right" if header == "similarity" else "left", overflow="fold")
    shown = set(list(dict.fromkeys(row["query"] for row in rows))[:most])
    for row in rows:
        if row["query"] in shown:
            query = row["query"] if row["rank"] == 1 else ""
            label = [row.get("label") or ""] if labelled else []
            table.add_row(query, f"{row['similarity']:.3f}", row["file"], *label)
    return table


def coverage_table(confidences: Mapping[Width, Confidence]) -> Table:
    """Return accuracy against coverage: a row per width, a column per share of the images."""
    coverages = list(next(iter(confidences.values())).accuracy)
    headers = (f"{100 * share:g} %" for share in coverages)
    table = Table("width", *headers, "error", box=box.SIMPLE_HEAD, pad_edge=False)
    for width, confidence in confidences.items():
        cells = (f"{confidence.accuracy[share]:.1f} (p {confidence.threshold[share]:.2f})" for share in coverages)
        table.add_row(f"{width:g}x", *cells, f"{confidence.calibration_error:.1f}")
    return table
