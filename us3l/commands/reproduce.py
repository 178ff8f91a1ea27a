"""`us3l reproduce`: a table of the paper, beside our own figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from us3l.commands.command import Command, command
from us3l.paper.scales import ScaleName
from us3l.run.identity import EvaluationSplit
from us3l.setting_types import ANYTHING, AnyPath, Positional, SomeNumbers, several
from us3l.system.devices import AskedPrecision
from us3l.system.errors import UserError

if TYPE_CHECKING:
    from us3l.commands.screen import CommandScreen
    from us3l.paper.plans import Plan
    from us3l.reporting.reproduction import Reproduction

    Sources = Mapping[str, str] | tuple[str, ...]
else:
    Sources = Annotated[tuple[str, ...], ANYTHING]


@dataclass(frozen=True)
class Reproduce(Command):
    """Fill in a table of the paper: train and evaluate the runs it needs, and write our results with the paper's.

    TABLE is main-cifar100, main-vit-cifar10, main-imagenet, motivation, ablation, ablation1, app-ablation,
    app-ablation-sample, app-ablation-reg, app-ablation-reg-for-byol, intersect, app-arbitrary-width, classification,
    classification-r18 or coco; or of ours: claims, every-width, plus-ablation, backbones, elastic, guidelines, steps.

    Runs are in OUT/SCALE, named by their settings. Tables share them, finished runs are never repeated, and any number
    of processes or machines that see the folder share the work. Tables are OUT/SCALE/tables/TABLE.csv, .md and .png;
    figures.json beside them keeps what every run found, for another machine (--known) or when the runs are deleted.

    examples:
      us3l reproduce main-cifar100 --list
      us3l reproduce main-cifar100 --rows 7 8 9 --seeds 3 --data cifar100=my/cifar100
      us3l reproduce every-width --scale small --seeds 3
      us3l reproduce claims --scale small
      us3l reproduce guidelines
      us3l reproduce main-imagenet --scale paper --rows 1 2 3
    """

    table: Annotated[str, Positional("TABLE")]
    """A table's name."""
    _: KW_ONLY
    scale: ScaleName = "mini"
    """Runs for CPUs, of 230 steps (mini) or 2,145 (small), or the paper's own settings (paper)."""
    rows: SomeNumbers = ()
    """Rows to train, by their numbers from 1 (default: all)."""
    seeds: int = 1
    """Train each row with this many seeds."""
    out: AnyPath = Path("runs/reproduce")
    """Folder of all runs and tables."""
    data: Sources = ()
    """Paths of data sets, as NAME=PATH; in Python, a dictionary (default: known sets by name, see us3l download)."""
    precision: AskedPrecision = "auto"
    """Arithmetic of runs that are yet to begin. bf16-mixed is quicker on processors with avx512_bf16."""
    known: AnyPath | None = None
    """tables/figures.json of another folder: runs whose figures it has are not trained."""
    split: EvaluationSplit = "test"
    """Test on the test images, or on validation images that are held out of the training: to choose settings without
    the test images. The runs of one are others than those of the other."""
    table_only: bool = False
    """Train nothing; write the table from existing results."""

    def plan(self, absent_too: bool = False) -> Plan:
        """Return what is to be done; `absent_too` plans runs whose data are not here as well."""
        from us3l.paper.plans import plan_table

        return plan_table(
            self.table,
            self.scale,
            several(self.rows),
            self.seeds,
            self.out,
            sources(self.data),
            self.precision,
            absent_too,
            self.known,
            self.split,
        )


@dataclass(frozen=True)
class ReproduceLine(Reproduce):
    __doc__ = Reproduce.__doc__

    list: bool = False
    """Only list the runs, their cost and their state."""


@command(Reproduce, line=ReproduceLine)
def reproduce(settings: Reproduce) -> Reproduction:
    """Fill a table of the paper: train and evaluate the runs that it lacks, and write both results.

    Returns:
        The table; `rows` has a dictionary per figure, `failures` the runs that failed.
    """
    from us3l.commands.detect import detect
    from us3l.commands.evaluate import evaluate
    from us3l.paper.plans import Worker
    from us3l.reporting.reproduction import write_reproduction
    from us3l.system.progress import progress_of
    from us3l.training.configuration import train

    failures: dict[str, str] = {}
    while True:  # what the claims need next depends on what was found
        plan = settings.plan()
        if settings.table_only or all(plan.done(job) or job.name in failures for job in plan.jobs):
            return write_reproduction(plan, failures)
        failures |= Worker(plan, train, evaluate, detect, progress_of(settings.progress)).work()


def sources(pairs: Sources) -> dict[str, str]:
    """Return the path of each data set by its name."""
    if isinstance(pairs, Mapping):
        return dict(pairs)
    paths = {}
    for text in pairs:
        name, _, path = text.partition("=")
        if not path:
            raise UserError(f"--data {text}: expected NAME=PATH, such as cifar100=my/cifar100")
        paths[name] = path
    return paths


def main(settings: ReproduceLine, screen: CommandScreen) -> int:
    from us3l.system.stopping import Interrupted

    show_plan(screen, settings.plan(absent_too=settings.list))
    if settings.list:
        return 0
    try:
        reproduction = reproduce.with_settings(settings)
    except Interrupted:
        screen.say("stopped: run the same command again to continue", style="bold")
        return 130
    show(screen, reproduction)
    return 1 if reproduction.failures else 0


def show_plan(screen: CommandScreen, plan: Plan) -> None:
    """Print the runs, their cost in epochs of the full network, and what is left to do."""
    from us3l.reporting.reproduction import jobs_table, what_is_left

    for data in plan.absent:
        screen.say(f"{data} was not found, so its cells stay empty: give --data {data}=PATH", style="yellow")
    screen.console.print(plan.place.scale.about, style="italic")
    screen.console.print(jobs_table(plan))
    screen.console.print(what_is_left(plan))


def show(screen: CommandScreen, reproduction: Reproduction) -> None:
    from us3l.reporting.reproduction import terminal_parts

    for name, reason in reproduction.failures.items():
        screen.say(f"failed: {name}: {reason}", style="bold red")
    for part in terminal_parts(reproduction):
        screen.console.print(part)
    screen.say(f"written: {reproduction.files[0].with_suffix('')}.csv, .md and .png")
