"""A reproduced table beside the paper's: for the terminal, as CSV, as Markdown, and as a picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from us3l.paper.cells import job_of
from us3l.paper.claims import CLAIMS
from us3l.paper.plans import Plan
from us3l.paper.workspace import CellResult, Workspace, add_figures, disagreements
from us3l.reporting.claim_tables import claim_notes, length_figure
from us3l.reporting.tables import TextTable
from us3l.run.records import write_csv
from us3l.system.errors import UserError
from us3l.system.files import write_text
from us3l.system.progress import clock

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FIGURES = "figures.json"  # of all tables in its folder
WHO = ("ours", "kNN", "paper", "difference")


@dataclass(frozen=True)
class Reproduction:
    """A table, ours beside the paper's."""

    table: str
    results: list[CellResult]
    """All figures of the table, also those that are not there yet."""
    notes: list[str | TextTable]
    """How large everything was, and where the order of rows is not the paper's; `str` makes a table Markdown."""
    files: list[Path]
    failures: dict[str, str] = field(default_factory=dict)
    """The runs that failed, by name, and why."""

    @property
    def title(self) -> str:
        return f"{self.table}: ours beside the paper's"

    @property
    def rows(self) -> list[dict[str, str]]:
        """A dictionary per figure, for pandas."""
        return [csv_row(result) for _, _, results in measured_rows(self.results) for result in results]


def write_reproduction(plan: Plan, failures: dict[str, str]) -> Reproduction:
    """Write what is there of a table, whoever made it: as CSV, Markdown and a picture."""
    results = plan.place.collect(plan.cells)
    if not any(result.values for result in results) and plan.table != CLAIMS:
        why = "; ".join(f"{name}: {reason}" for name, reason in failures.items())
        raise UserError(f"nothing of {plan.table} is there yet: {why or 'leave out `table_only`'}")
    tables = plan.place.folder / "tables"
    csv_file, page, picture = files = [tables / f"{plan.table}{suffix}" for suffix in (".csv", ".md", ".png")]
    notes: list[str | TextTable] = [plan.place.scale.about]
    for above, below, ours, paper in disagreements(results):
        notes.append(f"Order: {above} is {ours:.1f} above {below}; in the paper it is {-paper:.1f} below.")
    made = Reproduction(plan.table, results, notes, files, failures)
    write_csv(csv_file, made.rows, csv_row(results[0]))
    if plan.table == "guidelines":
        notes += draw_guidelines(plan.place, results)
    elif plan.table == CLAIMS:
        notes += claim_notes(plan.place, results)
        length_figure(results, picture)
    elif plan.table == "every-width":
        every_width_figure(results, picture)
    else:
        reproduction_figure(results, picture, made.title)
    write_text(page, as_markdown(made))
    add_figures(tables / FIGURES, {key: figure for result in results for key, figure in result.by_key.items()})
    return made


def draw_guidelines(place: Workspace, results: Sequence[CellResult]) -> list[str | TextTable]:
    """Draw the pictures, and return what the guidance of the runs that are here was like."""
    from us3l.reporting.guidelines import guidance_notes, guidelines_figure, rotation_figure

    runs, kept = {}, {}
    for result in results:
        label = result.cell.label
        if result.values and label not in runs and (gauges := place.gauges(next(iter(result.figures)))):
            runs[label] = gauges
            kept[label] = sum(job_of(result.cell, place.scale, 0).recipe.objective.guidelines.values())
    tables = place.folder / "tables"
    title = "Consistent guidance: the paper's three guidelines"
    guidelines_figure(runs, kept, results, tables / "guidelines.png", title)
    rotation_figure(tables / "rotation.png")
    return guidance_notes(runs, kept, results)


# Rows and cells


def measured_rows(results: Sequence[CellResult]) -> Iterator[tuple[int, str, list[CellResult]]]:
    """Yield the number, the label and the cells of each row that has any figure of ours."""
    for number in dict.fromkeys(result.cell.row for result in results):
        row = [result for result in results if result.cell.row == number]
        if any(result.values for result in row):
            yield number, row[0].cell.label, row


def columns(results: Sequence[CellResult]) -> list[str]:
    return list(dict.fromkeys(result.cell.column for result in results))


def cell_text(result: CellResult, who: str) -> str:
    """Return a figure as it stands in the table; a collapse is `-`, as in the paper."""
    if who == "paper":
        return "-" if result.cell.collapsed else "" if result.cell.paper is None else f"{result.cell.paper:.1f}"
    if result.mean is None or (who == "kNN" and not result.knn):
        return ""
    if result.collapsed:
        return "-" if who == "ours" else ""
    if who == "difference":
        return "" if result.difference is None else f"{result.difference:+.1f}"
    values = result.knn if who == "kNN" else result.values
    return f"{fmean(values):.1f}" + (f"±{stdev(values):.1f}" if len(values) > 1 else "")


def lines(results: Sequence[CellResult]) -> Iterator[tuple[str, str, list[str]]]:
    """Yield up to four lines for each row: whose, what stands before the figures, and these; see `WHO`."""
    for number, label, row in measured_rows(results):
        seeds = max(len(result.values) for result in row)
        first = f"{number}. {label}" + (f" ({seeds} seeds)" if seeds > 1 else "")
        for who in WHO:
            cells = [cell_text(result, who) for result in row]
            if any(cells):
                yield who, first if who == "ours" else who, cells


# For the terminal


def jobs_table(plan: Plan) -> Table:
    """Return the runs, their cost in epochs of the full network, and how far they are."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("run", "images", "cost", "state"):
        table.add_column(name, justify="right" if name in ("images", "cost") else "left")
    for job in plan.jobs:
        images = "all" if job.recipe.images is None else f"{job.recipe.images:,}"
        table.add_row(job.name, images, f"{job.effort:.1f}", plan.state(job))
    return table


def what_is_left(plan: Plan) -> str:
    """Return how many runs a table needs, and what it costs to train those that are missing."""
    text = f"{len(plan.jobs)} runs; left to train: as much as {plan.effort:.0f} epochs of the full network alone"
    if seconds := plan.seconds:
        text += f", about {clock(seconds)} at the pace of the runs that are done"
    return text


def terminal_parts(made: Reproduction) -> Iterator[Table | str]:
    """Yield a table and its notes as a terminal shows them; the claims are all in their notes."""
    if made.table != CLAIMS:
        yield reproduction_table(made.results, made.title)
    for note in made.notes[1:]:
        yield note.for_terminal if isinstance(note, TextTable) else note


def reproduction_table(results: Sequence[CellResult], title: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("", overflow="fold")
    for name in columns(results):
        table.add_column(name, justify="right", no_wrap=True)
    for who, first, cells in lines(results):
        table.add_row(first if who == "ours" else f"   {first}", *cells, style="bold" if who == "ours" else "dim")
    return table


# As files


def as_markdown(made: Reproduction) -> str:
    """Return the table as Markdown, below the first of the notes; the claims are all in their notes."""
    rows = [[f"**{first}**" if who == "ours" else first, *cells] for who, first, cells in lines(made.results)]
    table = [] if made.table == CLAIMS else [TextTable(["", *columns(made.results)], rows)]
    parts = [f"# {made.title}", *made.notes[:1], *table, *made.notes[1:]]
    return "\n\n".join(map(str, parts)) + "\n"


def csv_row(result: CellResult) -> dict[str, str]:
    """Return a figure as a line of the CSV; what is not there is empty."""
    cell, knn = result.cell, result.knn
    return {
        "row": str(cell.row),
        "label": cell.label,
        "column": cell.column,
        "width": str(cell.width),
        "ours": digits(result.mean, 4),
        "deviation": digits(result.deviation, 3),
        "seeds": str(len(result.values)),
        "collapses": str(result.collapses),
        "paper": "" if cell.paper is None else str(cell.paper),
        "paper_collapsed": str(int(cell.collapsed)),
        "difference": digits(result.difference, 3),
        "trained_on": cell.trained_on,
        "tested_on": cell.tested_on,
        "knn": digits(fmean(knn) if knn else None, 4),
        "knn_deviation": digits(stdev(knn) if len(knn) > 1 else None, 3),
    }


def digits(value: float | None, count: int) -> str:
    return "" if value is None else f"{value:.{count}g}"


# Pictures


def reproduction_figure(results: Sequence[CellResult], path: Path, title: str) -> None:
    """Draw figures over the width, ours beside the paper's; tables of transfer have a panel for each data set."""
    from us3l.reporting import style as draw

    done = [result for _, _, row in measured_rows(results) for result in row]
    by_width = all(result.cell.column == f"{result.cell.width:g}x" for result in done)
    panels = columns(done)
    if by_width:
        panels = ["ours", "the paper's"] if any(result.cell.paper for result in done) else ["ours"]
    across = len(panels) if len(panels) < 4 else -(-len(panels) // 2)
    down = -(-len(panels) // across)
    figure = draw.new_figure(max(7, 4.6 * across), 1.6 + 3.9 * down, title)
    places = figure.subplots(down, across, squeeze=False, sharex=True).flatten()
    for place, name in zip_longest(places, panels):
        if name is None:
            place.set_visible(False)
            continue
        place.set_title(name, fontsize=12, color=draw.INK)
        for number, series in enumerate(dict.fromkeys(result.cell.series for result in done)):
            line = [result for result in done if result.cell.series == series]
            if not by_width:
                line = [result for result in line if result.cell.column == name]
                draw_line(place, line, True, f"{series}, ours", draw.line_style(number))
                draw_line(place, line, False, f"{series}, the paper's", draw.line_style(number) | {"linestyle": ":"})
            else:
                draw_line(place, line, name == "ours", series, draw.line_style(number))
        draw.plain(place, "width")
    places[0].set_ylabel("AP" if panels[0].startswith("AP") else "top-1 accuracy (%)", fontsize=11, color=draw.INK)
    draw.legend(figure, places[0], columns=3, size=9)
    draw.save(figure, path)


def every_width_figure(results: Sequence[CellResult], path: Path) -> None:
    """Draw accuracy against what a network costs: the linear probe and nearest neighbours, a line per row."""
    from us3l.reporting import style as draw

    title = "One training, every width: accuracy against cost on CIFAR-100"
    figure = draw.new_figure(10, 5.2, title)
    for axes, name in zip(figure.subplots(1, 2), ("linear probe", "kNN"), strict=True):
        axes.set_title(f"{name} (%)", fontsize=12, color=draw.INK)
        for number, (_, label, row) in enumerate(measured_rows(results)):
            points = sorted(
                (result.macs / 1e6, fmean(values), stdev(values) if len(values) > 1 else 0.0)
                for result in row
                if result.macs and (values := result.knn if name == "kNN" else result.values)
            )
            if points:
                costs, means, errors = zip(*points, strict=True)
                bars = errors if any(errors) else None
                axes.errorbar(costs, means, bars, label=label, linewidth=1.8, capsize=3, **draw.line_style(number))
        draw.log_ticks(axes)
        draw.plain(axes, "million multiply-accumulates per image")
    draw.legend(figure, figure.axes[0], columns=4, size=10)
    draw.save(figure, path)


def draw_line(place: Axes, line: Sequence[CellResult], ours: bool, label: str, style: dict[str, Any]) -> None:
    """Draw a line of a picture. Collapsed figures are left out; bars are deviations over seeds."""
    points = []
    for result in line:
        value = result.mean if ours else result.cell.paper
        if value is not None and not (ours and result.collapsed):
            points.append((result.cell.width, value, (result.deviation or 0.0) if ours else 0.0))
    widths, values, errors = zip(*sorted(points), strict=True) if points else ((), (), ())
    place.errorbar(widths, values, errors if any(errors) else None, label=label, linewidth=1.8, capsize=3, **style)
