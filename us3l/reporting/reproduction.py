"""A reproduced table beside the paper's: for the terminal, as CSV, as Markdown, and as a picture."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from us3l.paper.claims import CLAIMS
from us3l.paper.plans import Plan
from us3l.paper.reproduce import job_of
from us3l.paper.run_figures import add_figures
from us3l.paper.workspace import Found, Workspace, disagreements
from us3l.reporting.claim_tables import claim_notes, length_figure
from us3l.system.errors import UserError
from us3l.system.files import write_text
from us3l.system.progress import clock

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FIGURES = "figures.json"  # of all tables in its folder
WHO = ("ours", "kNN", "paper", "difference")
FIELDS = (
    "row label column width ours deviation seeds collapses paper paper_collapsed difference trained_on tested_on "
    "knn knn_deviation"
)


@dataclass(frozen=True)
class Reproduction:
    """A table, ours beside the paper's."""

    table: str
    found: list[Found]
    """All figures of the table, also those that are not there yet."""
    notes: list[str]
    """How large everything was, and where the order of rows is not the paper's."""
    files: list[Path]
    failures: dict[str, str] = field(default_factory=dict)
    """The runs that failed, by name, and why."""

    @property
    def title(self) -> str:
        return f"{self.table}: ours beside the paper's"

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A dictionary per figure, for pandas."""
        return [dict(line) for line in csv.DictReader(io.StringIO(as_csv(self.found)))]


def write_reproduction(plan: Plan, failures: dict[str, str]) -> Reproduction:
    """Write what is there of a table, whoever made it: as CSV, Markdown and a picture."""
    found = plan.place.collect(plan.figures)
    if not any(one.values for one in found) and plan.table != CLAIMS:
        why = "; ".join(f"{name}: {reason}" for name, reason in failures.items())
        raise UserError(f"nothing of {plan.table} is there yet: {why or 'leave out `table_only`'}")
    notes = [plan.place.scale.about]
    for above, below, ours, paper in disagreements(found):
        notes.append(f"Order: {above} is {ours:.1f} above {below}; in the paper it is {-paper:.1f} below.")
    base = plan.place.folder / "tables" / plan.table
    files = [base.with_suffix(suffix) for suffix in (".csv", ".md", ".png")]
    made = Reproduction(plan.table, found, notes, files, failures)
    write_text(files[0], as_csv(found))
    if plan.table == "guidelines":
        notes += draw_guidelines(plan.place, found)
    elif plan.table == CLAIMS:
        notes += claim_notes(plan.place, found)
        length_figure(found, files[2])
    elif plan.table == "every-width":
        every_width_figure(found, files[2])
    else:
        reproduction_figure(found, files[2], made.title)
    whole = "\n\n".join([f"# {made.title}", *notes, ""]) if plan.table == CLAIMS else markdown(found, made.title, notes)
    write_text(files[1], whole)
    figures = {key: figure for one in found for key, figure in one.by_key.items()}
    add_figures(plan.place.folder / "tables" / FIGURES, figures)
    return made


def draw_guidelines(place: Workspace, found: Sequence[Found]) -> list[str]:
    """The pictures, and what the guidance of the runs that are here was like."""
    from us3l.reporting.guidelines import guidance_notes, guidelines_figure, rotation_figure

    runs, kept = {}, {}
    for one in found:
        if one.values and one.entry.label not in runs and (gauges := place.gauges(next(iter(one.figures)))):
            runs[one.entry.label] = gauges
            kept[one.entry.label] = sum(job_of(one.entry, place.scale, 0).recipe.objective.guidelines.values())
    tables = place.folder / "tables"
    guidelines_figure(runs, kept, found, tables / "guidelines.png", "Consistent guidance: the paper's three guidelines")
    rotation_figure(tables / "rotation.png")
    return guidance_notes(runs, kept, found)


def rows(found: Sequence[Found]) -> Iterator[tuple[int, str, list[Found]]]:
    """Number, label and figures of each row that has any figure of ours."""
    for number in dict.fromkeys(one.entry.row for one in found):
        figures = [one for one in found if one.entry.row == number]
        if any(one.values for one in figures):
            yield number, figures[0].entry.label, figures


def columns(found: Sequence[Found]) -> list[str]:
    return list(dict.fromkeys(one.entry.column for one in found))


def cell(one: Found, who: str) -> str:
    """A figure as it stands in the table; a collapse is `-`, as in the paper."""
    if who == "paper":
        return "-" if one.entry.collapsed else "" if one.entry.paper is None else f"{one.entry.paper:.1f}"
    if one.mean is None or (who == "kNN" and not one.knn):
        return ""
    if one.collapsed:
        return "-" if who == "ours" else ""
    if who == "difference":
        return "" if one.difference is None else f"{one.difference:+.1f}"
    values = one.knn if who == "kNN" else one.values
    return f"{fmean(values):.1f}" + (f"±{stdev(values):.1f}" if len(values) > 1 else "")


def lines(found: Sequence[Found]) -> Iterator[tuple[str, str, list[str]]]:
    """Up to four for each row: whose, what stands before the figures, and these: see `WHO`."""
    for number, label, figures in rows(found):
        seeds = max(len(one.values) for one in figures)
        first = f"{number}. {label}" + (f" ({seeds} seeds)" if seeds > 1 else "")
        for who in WHO:
            cells = [cell(one, who) for one in figures]
            if any(cells):
                yield who, first if who == "ours" else who, cells


def jobs_table(plan: Plan) -> Table:
    """The runs, their cost in epochs of the full network, and how far they are."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name, side in (("run", "left"), ("images", "right"), ("cost", "right"), ("state", "left")):
        table.add_column(name, justify=side)  # type: ignore[arg-type]
    for job in plan.jobs:
        images = "all" if job.recipe.images is None else f"{job.recipe.images:,}"
        table.add_row(job.name, images, f"{job.effort:.1f}", plan.state(job))
    return table


def what_is_left(plan: Plan) -> str:
    """How many runs a table needs, and what it costs to train those that are missing."""
    text = f"{len(plan.jobs)} runs; left to train: as much as {plan.effort:.0f} epochs of the full network alone"
    if seconds := plan.seconds:
        text += f", about {clock(seconds)} at the pace of the runs that are done"
    return text


def reproduction_table(found: Sequence[Found], title: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("", overflow="fold")
    for name in columns(found):
        table.add_column(name, justify="right", no_wrap=True)
    for who, first, cells in lines(found):
        table.add_row(first if who == "ours" else f"   {first}", *cells, style="bold" if who == "ours" else "dim")
    return table


def terminal_parts(made: Reproduction) -> Iterator[Table | str]:
    """A table and its notes as a terminal shows them; the claims are all in their notes."""
    if made.table != CLAIMS:
        yield reproduction_table(made.found, made.title)
    for note in made.notes[1:]:
        yield note_table(note) if note.startswith("|") else note


def note_table(note: str) -> Table:
    """A table of Markdown, for the terminal."""
    plain = note.replace("**", "").splitlines()
    head, _, *body = ([cell.strip() for cell in line[1:-1].split("|")] for line in plain)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in head:
        table.add_column(name, overflow="fold")
    for cells in body:
        table.add_row(*cells)
    return table


def markdown(found: Sequence[Found], title: str, notes: Sequence[str]) -> str:
    """The first of the notes stands above the table."""
    head = ["", *columns(found)]
    body = [[f"**{first}**" if who == "ours" else first, *cells] for who, first, cells in lines(found)]
    table = "\n".join("| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *body])
    return "\n\n".join([f"# {title}", *notes[:1], table, *notes[1:]]) + "\n"


def as_csv(found: Sequence[Found]) -> str:
    """One line a figure."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(FIELDS.split())
    for _, _, figures in rows(found):
        for one in figures:
            entry = one.entry
            ours = "" if one.mean is None else f"{one.mean:.4g}"
            deviation = "" if one.deviation is None else f"{one.deviation:.3g}"
            difference = "" if one.difference is None else f"{one.difference:.3g}"
            paper = "" if entry.paper is None else entry.paper
            what = [entry.row, entry.label, entry.column, entry.width]
            theirs = [paper, int(entry.collapsed), difference, entry.trained_on, entry.tested_on]
            near = f"{fmean(one.knn):.4g}" if one.knn else ""
            scatter = f"{stdev(one.knn):.3g}" if len(one.knn) > 1 else ""
            writer.writerow([*what, ours, deviation, len(one.values), one.collapses, *theirs, near, scatter])
    return text.getvalue()


def reproduction_figure(found: Sequence[Found], path: Path, title: str) -> None:
    """Over the width, ours beside the paper's; of tables of transfer, a panel for each data set with both."""
    from us3l.reporting import style as draw

    done = [one for _, _, figures in rows(found) for one in figures]
    by_width = all(one.entry.column == f"{one.entry.width:g}x" for one in done)
    panels = columns(done)
    if by_width:
        panels = ["ours", "the paper's"] if any(one.entry.paper for one in done) else ["ours"]
    across = len(panels) if len(panels) < 4 else -(-len(panels) // 2)
    down = -(-len(panels) // across)
    figure = draw.new_figure(max(7, 4.6 * across), 1.6 + 3.9 * down, title)
    places = figure.subplots(down, across, squeeze=False, sharex=True).flatten()
    for place, name in zip_longest(places, panels):
        if name is None:
            place.set_visible(False)
            continue
        place.set_title(name, fontsize=12, color=draw.INK)
        for number, series in enumerate(dict.fromkeys(one.entry.series for one in done)):
            line = [one for one in done if one.entry.series == series and (by_width or one.entry.column == name)]
            if not by_width:
                draw_line(place, line, True, f"{series}, ours", draw.line_style(number))
                draw_line(place, line, False, f"{series}, the paper's", draw.line_style(number) | {"linestyle": ":"})
            else:
                draw_line(place, line, name == "ours", series, draw.line_style(number))
        draw.plain(place, "width")
    places[0].set_ylabel("AP" if panels[0].startswith("AP") else "top-1 accuracy (%)", fontsize=11, color=draw.INK)
    draw.legend(figure, places[0], columns=3, size=9)
    draw.save(figure, path)


def every_width_figure(found: Sequence[Found], path: Path) -> None:
    """Accuracy against what a network costs: the linear probe and nearest neighbours, a line per row."""
    from us3l.reporting import style as draw

    title = "One training, every width: accuracy against cost on CIFAR-100"
    figure = draw.new_figure(10, 5.2, title)
    for axes, name in zip(figure.subplots(1, 2), ("linear probe", "kNN"), strict=True):
        axes.set_title(f"{name} (%)", fontsize=12, color=draw.INK)
        for number, (_, label, figures) in enumerate(rows(found)):
            points = sorted(
                (one.macs / 1e6, fmean(values), stdev(values) if len(values) > 1 else 0.0)
                for one in figures
                if one.macs and (values := one.knn if name == "kNN" else one.values)
            )
            if points:
                costs, means, errors = zip(*points, strict=True)
                bars = errors if any(errors) else None
                axes.errorbar(costs, means, bars, label=label, linewidth=1.8, capsize=3, **draw.line_style(number))
        draw.log_ticks(axes)
        draw.plain(axes, "million multiply-accumulates per image")
    draw.legend(figure, figure.axes[0], columns=4, size=10)
    draw.save(figure, path)


def draw_line(place: Axes, line: Sequence[Found], ours: bool, label: str, style: dict[str, Any]) -> None:
    """Collapsed figures are left out; bars are deviations over seeds."""
    points = []
    for one in line:
        value = one.mean if ours else one.entry.paper
        if value is not None and not (ours and one.collapsed):
            points.append((one.entry.width, value, (one.deviation or 0.0) if ours else 0.0))
    widths, values, errors = zip(*sorted(points), strict=True) if points else ((), (), ())
    place.errorbar(widths, values, errors if any(errors) else None, label=label, linewidth=1.8, capsize=3, **style)
