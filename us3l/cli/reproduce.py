"""`us3l reproduce`"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from us3l.cli.parse import parse
from us3l.errors import UserError

if TYPE_CHECKING:
    from us3l.console import Console
    from us3l.paper.reproduce import Entry, Job
    from us3l.paper.workspace import Found, Workspace

WAIT = 15.0  # seconds between looks at what other processes are doing
TIMES = "reproduce.json"


@dataclass(frozen=True)
class Reproduce:
    """Fill a table of the paper: list the runs it needs, train what is missing, evaluate, and write it beside theirs.

    TABLE is main-cifar100, main-vit-cifar10, main-imagenet, motivation, ablation, ablation1, app-ablation,
    app-ablation-sample, app-ablation-reg, app-ablation-reg-for-byol, intersect, app-arbitrary-width, classification,
    classification-r18 or coco; or one of ours: guidelines, steps.

    Runs lie in OUT/SCALE, named by their settings: tables share them, finished ones are never repeated, and any number
    of processes or machines that see the folder share the work. Tables are OUT/SCALE/tables/TABLE.csv, .md and .png.

    examples:
      us3l reproduce main-cifar100 --list
      us3l reproduce main-cifar100 --rows 7 8 9 --seeds 3 --data cifar100=my/cifar100
      us3l reproduce guidelines
      us3l reproduce main-imagenet --scale paper --rows 1 2 3
    """

    table: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TABLE")]
    """A table's name."""
    scale: Literal["mini", "paper"] = "mini"
    """Small runs for CPUs, or all as the paper has it."""
    rows: tuple[int, ...] = ()
    """Rows to train, by their numbers from 1 (default: all)."""
    seeds: int = 1
    """Train each row with this many seeds."""
    out: Path = Path("runs/reproduce")
    """Folder of all runs and tables."""
    data: tuple[str, ...] = ()
    """Where data sets lie, as NAME=PATH (default: known sets by name, see us3l download)."""
    list: bool = False
    """Only list the runs, their cost and their state."""
    table_only: bool = False
    """Train nothing; write the table from what is there."""


def main(arguments: list[str]) -> int:
    command = parse(Reproduce, "reproduce", arguments)
    from us3l.console import Console
    from us3l.paper.reproduce import SCALES, chosen_rows, entries, jobs_of
    from us3l.paper.workspace import Workspace

    if command.seeds < 1:
        raise UserError(f"--seeds must be at least 1, not {command.seeds}")
    console, scale = Console(), SCALES[command.scale]
    every = entries(command.table, scale)
    wanted = chosen_rows(every, command.rows)
    place = Workspace(command.out / command.scale, scale, sources(command.data))
    absent = [data for data in dict.fromkeys(entry.tested_on for entry in wanted) if not here(place, data)]
    for data in absent:
        console.print(f"{data} is not here, so its figures stay empty: --data {data}=PATH", style="yellow")
    if not command.list:
        wanted = [entry for entry in wanted if entry.tested_on not in absent]
    jobs = jobs_of(wanted, scale, command.seeds)
    console.print(scale.about, style="italic", highlight=False)
    show_plan(console, place, jobs, wanted)
    if command.list:
        return 0
    failures: dict[str, str] = {}
    if not command.table_only:
        code = work(console, place, jobs, wanted, failures)
        if code:
            console.print("stopped: the same command goes on from here", style="bold")
            return code
    for name, reason in failures.items():
        console.print(f"failed: {name}: {reason}", style="bold red", markup=False, highlight=False, soft_wrap=True)
    write(console, place, command.table, place.collect(every))
    return 1 if failures else 0


def sources(given: Sequence[str]) -> dict[str, str]:
    found = {}
    for text in given:
        name, _, path = text.partition("=")
        if not path:
            raise UserError(f"--data {text}: expected NAME=PATH, such as cifar100=my/cifar100")
        found[name] = path
    return found


def here(place: Workspace, data: str) -> bool:
    """Whether a data set can be found."""
    from us3l.data.named import is_there

    source = place.source(data)
    found = is_there(source)
    if not found and source != data:
        raise UserError(f"--data {data}={source}: there is no such file or folder")
    return found


def show_plan(console: Console, place: Workspace, jobs: Sequence[Job], wanted: Sequence[Entry]) -> None:
    """The runs, their cost in epochs of the full network, and what is left to do."""
    from rich import box
    from rich.table import Table

    from us3l.progress import clock

    rates = [rate for job in jobs if (rate := pace(place, job))]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name, side in (("run", "left"), ("images", "right"), ("cost", "right"), ("state", "left")):
        table.add_column(name, justify=side)  # type: ignore[arg-type]
    left = 0.0
    for job in jobs:
        run = place.run(job)
        state = "done" if place.done(job, wanted) else "to evaluate" if run.finished else "to train"
        if state == "to train" and run.config_file.exists():
            state = "begun"
        left += 0.0 if run.finished else job.effort
        images = "all" if job.recipe.images is None else f"{job.recipe.images:,}"
        table.add_row(job.name, images, f"{job.effort:.1f}", state)
    console.print(table)
    text = f"{len(jobs)} runs; left to train: as much as {left:.0f} epochs of the full network alone"
    if rates and left:
        text += f", about {clock(left * sum(rates) / len(rates))} at the pace of the runs that are done"
    console.print(text, highlight=False)


def pace(place: Workspace, job: Job) -> float | None:
    """Seconds for an epoch's worth, of a run that was made in one go."""
    from us3l.files import read_json

    path = place.run(job).folder / TIMES
    return read_json(path)["seconds"] / job.effort if path.exists() else None


def work(
    console: Console, place: Workspace, jobs: Sequence[Job], wanted: Sequence[Entry], failures: dict[str, str]
) -> int:
    """Do what no other process is doing, until all is done."""
    from us3l.files import Taken, locked

    left = [job for job in jobs if not place.done(job, wanted)]
    while left:
        before = len(left)
        for job in list(left):
            if job.teacher and job.teacher.name in failures:
                failures[job.name] = "its teacher failed"
            elif job.teacher and not place.run(job.teacher).finished:
                continue
            else:
                try:
                    with locked(place.folder / "claims" / job.name):
                        code = finish(console, place, job, wanted)
                except Taken:
                    continue
                except UserError as error:
                    failures[job.name] = str(error)
                    code = 0
                if code:
                    return code
            left.remove(job)
            console.print(f"{len(jobs) - len(left)} of {len(jobs)} runs are done", style="bold", highlight=False)
        if len(left) == before:
            console.print(f"waiting for {len(left)} runs that other processes are at", highlight=False)
            wait()
            left = [job for job in left if not place.done(job, wanted)]
    return 0


def wait() -> None:
    time.sleep(WAIT)


def finish(console: Console, place: Workspace, job: Job, wanted: Sequence[Entry]) -> int:
    """Train and evaluate what is missing of one run."""
    from us3l.cli import pretrain
    from us3l.files import write_json
    from us3l.training.run import config_of

    run = place.run(job)
    place.check(job)
    if not run.finished:
        begun, started = run.config_file.exists(), time.monotonic()
        console.print(f"\n{job.name}", style="bold", highlight=False)
        if code := pretrain.execute(config_of(run) if begun else place.config(job), run, resume=begun):
            return code
        if not begun:
            write_json(run.folder / TIMES, {"seconds": time.monotonic() - started})
    for (data, detection), widths in place.missing(job, wanted).items():
        if detection:
            if code := detect(console, place, job, data, widths):
                return code
        else:
            evaluate(place, job, data, widths)
    return 0


def evaluate(place: Workspace, job: Job, data: str, widths: Sequence[float]) -> None:
    from us3l import verbs
    from us3l.cli.evaluate import show
    from us3l.cli.screen import CommandScreen

    run, scale, screen = place.run(job), place.scale, CommandScreen()
    record = verbs.evaluate(
        run,
        place.source(data),
        train_images=scale.labelled,
        widths=tuple(sorted(widths, reverse=True)),
        protocol=scale.protocol,
        probe="imagenet" if data == "imagenet" and scale.protocol == "paper" else "auto",
        floor=False,
        progress=screen,
    )
    show(screen, run, record)


def detect(console: Console, place: Workspace, job: Job, data: str, widths: Sequence[float]) -> int:
    from us3l.cli.detect import show
    from us3l.cli.screen import CommandScreen
    from us3l.evaluation.detection.objects import detect_objects
    from us3l.evaluation.detection.settings import DetectionSettings, DetectorTraining
    from us3l.run.detections import DETECTOR, detection_stem, ended
    from us3l.stopping import Interrupted

    run, source, screen = place.run(job), place.source(data), CommandScreen()
    settings = DetectionSettings(training=DetectorTraining(**place.scale.detector))
    for width in widths:
        stem = detection_stem(run.detection_folder, Path(source).resolve().name, source, width)
        begun = ended(stem, DETECTOR).exists()
        try:
            show(screen, detect_objects(run, source, width, settings, resume=begun, progress=screen))
        except Interrupted as stop:
            console.say(f"us3l: {stop}", style="yellow")
            return 130
    return 0


def write(console: Console, place: Workspace, name: str, found: Sequence[Found]) -> None:
    from us3l.files import write_text
    from us3l.paper.workspace import disagreements
    from us3l.reporting.reproduction import as_csv, markdown, reproduction_figure, reproduction_table

    if not any(one.values for one in found):
        raise UserError(f"nothing of {name} is there yet: leave out --table-only")
    title = f"{name}: ours beside the paper's"
    notes = [place.scale.about]
    for above, below, ours, paper in disagreements(found):
        notes.append(f"Order: {above} is {ours:.1f} above {below}; in the paper it is {-paper:.1f} below.")
    console.print(reproduction_table(found, title))
    for note in notes[1:]:
        console.print(note, highlight=False)
    base = place.folder / "tables" / name
    write_text(base.with_suffix(".csv"), as_csv(found))
    write_text(base.with_suffix(".md"), markdown(found, title, notes))
    if name == "guidelines":
        draw_guidelines(place, found)
    else:
        reproduction_figure(found, base.with_suffix(".png"), title)
    console.print(f"written: {base}.csv, .md and .png", highlight=False, soft_wrap=True)


def draw_guidelines(place: Workspace, found: Sequence[Found]) -> None:
    from us3l.reporting.guidelines import guidelines_figure, rotation_figure

    runs, kept = {}, {}
    for one in found:
        if one.values and one.entry.label not in runs:
            job = place.seeds(one.entry)[0]
            runs[one.entry.label] = place.gauges(job)
            kept[one.entry.label] = sum(job.recipe.objective.guidelines.values())
    tables = place.folder / "tables"
    guidelines_figure(runs, kept, found, tables / "guidelines.png", "Consistent guidance: the paper's three guidelines")
    rotation_figure(tables / "rotation.png")
