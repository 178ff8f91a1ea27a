"""Results as a table for the terminal."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from us3l.evaluation.compare_runs import Comparison
from us3l.evaluation.scoring import Confidence
from us3l.run.evaluations import FewLabels, RetrievalRecord, WidthResult
from us3l.width import Width


def human(count: float) -> str:
    """Three significant digits and a unit.

    >>> human(11_173_962), human(556_651_520), human(950)
    ('11.2 M', '557 M', '950')
    """
    units = iter(("", " k", " M", " G", " T"))
    unit = next(units)
    while count >= 999.5 and unit != " T":  # 999.5 would round to 1000
        count, unit = count / 1000, next(units)
    return f"{count:#.3g}".rstrip(".") + unit if unit else f"{count:.0f}"


def round_count(count: float) -> str:
    """The same of a round number, which ticks of pictures have.

    >>> round_count(2e6), round_count(500)
    ('2 M', '500')
    """
    return human(count).replace(".00", "").replace(".0", "")


def results_table(results: Sequence[WidthResult], title: str | None = None) -> Table:
    """One row per width; each accuracy stands beside its untrained floor and the gain over it.

    Columns without any number are left out, and so is what has no room: top-5 accuracy beside floors, and quality
    without labels beside accuracies. Accuracies have the half-width of their 95 % interval, as in "61.2 ±0.9". Print it
    by `rich.console.Console().print(...)`.

    Args:
        results: What was measured at each width.
        title: Above the table.
    """
    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    cells = []
    floors = any(result.untrained for result in results)
    labelled = any(result.scores for result in results)
    for header, style, cell in COLUMNS + ([] if floors else TOP5) + ([] if labelled else QUALITY):
        column = [cell(result) for result in results]
        if any(column):
            table.add_column(header, style, justify="right", no_wrap=True)
            cells.append(column)
    for row in zip(*cells, strict=True):
        table.add_row(*row)
    return table


def _tenths(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _gain(accuracy: float | None, floor: float | None) -> str:
    return "" if accuracy is None or floor is None else f"{accuracy - floor:+.1f}"


Cell = Callable[[WidthResult], str]


def _accuracy(metric: str) -> Cell:
    def cell(result: WidthResult) -> str:
        score = result.scores.get(metric)
        return f"{score.top1:.1f} ±{(score.high - score.low) / 2:.1f}" if score else ""

    return cell


def _gained(metric: str) -> Cell:
    return lambda result: _gain(result.percent(metric), result.untrained.get(metric))


def _figure(name: str) -> Cell:
    """A figure of `WidthResult.row` with one digit."""
    return lambda result: _tenths(result.row[name])


# The headers are cut so that all columns of kNN and linear probe with their floors fit into 80 characters.
COLUMNS: list[tuple[str, str, Cell]] = [
    ("width", "bold", lambda result: f"{result.width:.4g}x"),
    ("params", "", lambda result: human(result.cost.params)),
    ("MACs", "", lambda result: human(result.cost.macs)),
    ("kNN\n%", "bold", _accuracy("knn")),
    ("un-\ntrained", "dim", _figure("knn_untrained")),
    ("gain", "green", _gained("knn")),
    ("linear\n%", "bold", _accuracy("linear")),
    ("un-\ntrained", "dim", _figure("linear_untrained")),
    ("gain", "green", _gained("linear")),
    ("fine-\ntuned %", "bold", _accuracy("finetuned")),
]
TOP5: list[tuple[str, str, Cell]] = [
    ("kNN\ntop-5 %", "", _figure("knn_top5")),
    ("linear\ntop-5 %", "", _figure("linear_top5")),
    ("fine-tuned\ntop-5 %", "", _figure("finetuned_top5")),
]
QUALITY: list[tuple[str, str, Cell]] = [
    ("RankMe", "bold", _figure("rankme")),
    ("LiDAR", "bold", _figure("lidar")),
    ("agreement\nwith 1x %", "bold", _figure("agreement")),
]


WITHOUT_LABELS = (
    "without labels: RankMe and LiDAR count the directions that features use (at most the channels, so compare runs "
    "at one width); agreement is the share of neighbours that are the same at 1x"
)


def uncertainty(results: Sequence[WidthResult], images: int) -> str:
    """One line on how far the accuracies can be trusted."""
    scores = [score for result in results for score in result.scores.values()]
    text = f"± is the 95 % interval for {images:,} test images; other seeds of the pre-training may differ by more"
    deviations = [score.deviation for score in scores if score.deviation is not None]
    return text + (f"; deviation over {scores[0].seeds} seeds at most {max(deviations):.1f}" if deviations else "")


def few_labels_table(found: Sequence[FewLabels]) -> Table:
    """One row per width, one column per share of the labels: the linear probe, with its deviation over seeds."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("width", "bold", justify="right")
    shares = {one.share: one.images for one in found}
    for share, images in shares.items():
        table.add_column(f"{share:.3g} of them\n{images:,} images", justify="right")
    for width in dict.fromkeys(one.width for one in found):
        row = [one.linear for one in found if one.width == width]
        spread = [f" ± {one.deviation:.1f}" if one.deviation is not None else "" for one in row]
        cells = [f"{one.top1:.1f}{more}" for one, more in zip(row, spread, strict=True)]
        table.add_row(f"{width:.4g}x", *cells)
    return table


def comparison_table(compared: Comparison) -> Table:
    """One row per width, one column per run or group of seeds, with the difference to the first."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("width", "bold", justify="right")
    columns = [group.results(compared.metric) for group in compared.groups]
    for position, group in enumerate(compared.groups):
        seeds = f"\n{len(group.records)} seeds" if len(group.records) > 1 else ""
        table.add_column(f"{group.name}{seeds}", justify="right")
        if position:
            table.add_column("+/-", "dim", justify="right")
    for width in compared.widths:
        scores = [column[width].scores[compared.metric] if width in column else None for column in columns]
        cells = []
        for position, score in enumerate(scores):
            spread = f" ± {score.deviation:.1f}" if score and score.deviation is not None else ""
            cells.append(_tenths(score.top1) + spread if score else "")
            if position:
                cells.append(_gain(*(one.top1 if one else None for one in (score, scores[0]))))
        table.add_row(f"{width:.4g}x", *cells)
    return table


def comparison(runs: Mapping[str, Sequence[WidthResult]], metric: str) -> dict[Width, dict[str, float | None]]:
    """One accuracy of every run at every width that any of them has, widest first; None where it was not measured."""
    found = {name: {result.width: result.row.get(metric) for result in results} for name, results in runs.items()}
    widths = sorted({width for values in found.values() for width in values}, reverse=True)
    return {width: {name: values.get(width) for name, values in found.items()} for width in widths}


def retrieval_table(record: RetrievalRecord, metric: str) -> Table:
    """A row per query width, a column per gallery width.

    Args:
        record: What was measured.
        metric: "recall" or "knn".
    """
    cells = {(f"{row.query:g}x", f"{row.gallery:g}x"): getattr(row, metric) for row in record.rows}
    widths = list(dict.fromkeys(gallery for _, gallery in cells))
    table = Table("query", *widths, box=box.SIMPLE_HEAD, pad_edge=False)
    for query in dict.fromkeys(query for query, _ in cells):
        table.add_row(query, *(_tenths(cells[query, gallery]) for gallery in widths))
    return table


def found_table(rows: Sequence[Mapping[str, Any]], most: int) -> Table:
    """What was found, a line per image; of the first queries only.

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


def coverage_table(found: Mapping[Width, Confidence]) -> Table:
    """Accuracy against coverage: a row per width, a column per share of the images."""
    coverages = list(next(iter(found.values())).accuracy)
    headers = (f"{100 * share:g} %" for share in coverages)
    table = Table("width", *headers, "error", box=box.SIMPLE_HEAD, pad_edge=False)
    for width, one in found.items():
        cells = (f"{one.accuracy[share]:.1f} (p {one.threshold[share]:.2f})" for share in coverages)
        table.add_row(f"{width:g}x", *cells, f"{one.calibration_error:.1f}")
    return table
