"""`us3l reproduce`"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from us3l.commands.parse import parse
from us3l.paper.scales import ScaleName
from us3l.run.evaluations import EvaluationSplit
from us3l.system.devices import AskedPrecision
from us3l.system.errors import UserError

if TYPE_CHECKING:
    from us3l.commands.screen import CommandScreen
    from us3l.paper.plans import Plan
    from us3l.reporting.reproduction import Reproduction


@dataclass(frozen=True)
class Reproduce:
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
      us3l reproduce main-imagenet --scale paper --rows 1 2 3
    """

    table: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TABLE")]
    """A table's name."""
    scale: ScaleName = "mini"
    """Runs for CPUs, of 230 steps (mini) or 2,145 (small), or the paper's own settings (paper)."""
    rows: tuple[int, ...] = ()
    """Rows to train, by their numbers from 1 (default: all)."""
    seeds: int = 1
    """Train each row with this many seeds."""
    out: Path = Path("runs/reproduce")
    """Folder of all runs and tables."""
    data: tuple[str, ...] = ()
    """Paths of data sets, as NAME=PATH (default: known sets by name, see us3l download)."""
    precision: AskedPrecision = "auto"
    """Arithmetic of runs that are yet to begin. bf16-mixed is quicker on processors with avx512_bf16."""
    known: Path | None = None
    """tables/figures.json of another folder: runs whose figures it has are not trained."""
    split: EvaluationSplit = "test"
    """Test on the test images, or on validation images that are held out of the training."""
    list: bool = False
    """Only list the runs, their cost and their state."""
    table_only: bool = False
    """Train nothing; write the table from existing results."""


def main(arguments: list[str]) -> int:
    command = parse(Reproduce, "reproduce", arguments)
    from us3l.commands.screen import CommandScreen
    from us3l.paper.plans import plan_table
    from us3l.system.stopping import Interrupted
    from us3l.verbs import reproduce

    screen = CommandScreen()
    settings = {name: value for name, value in vars(command).items() if name not in ("list", "table_only")}
    settings["data"] = sources(command.data)
    show_plan(screen, plan_table(**settings, absent_too=command.list))
    if command.list:
        return 0
    try:
        made = reproduce(**settings, table_only=command.table_only, progress=screen)
    except Interrupted:
        screen.say("stopped: run the same command again to continue", style="bold")
        return 130
    show(screen, made)
    return 1 if made.failures else 0


def sources(given: Sequence[str]) -> dict[str, str]:
    found = {}
    for text in given:
        name, _, path = text.partition("=")
        if not path:
            raise UserError(f"--data {text}: expected NAME=PATH, such as cifar100=my/cifar100")
        found[name] = path
    return found


def show_plan(screen: CommandScreen, plan: Plan) -> None:
    """The runs, their cost in epochs of the full network, and what is left to do."""
    from us3l.reporting.reproduction import jobs_table, what_is_left

    for data in plan.absent:
        screen.say(f"{data} was not found, so its cells stay empty: give --data {data}=PATH", style="yellow")
    screen.console.print(plan.place.scale.about, style="italic")
    screen.console.print(jobs_table(plan))
    screen.console.print(what_is_left(plan))


def show(screen: CommandScreen, made: Reproduction) -> None:
    from us3l.reporting.reproduction import terminal_parts

    for name, reason in made.failures.items():
        screen.say(f"failed: {name}: {reason}", style="bold red")
    for part in terminal_parts(made):
        screen.console.print(part)
    screen.say(f"written: {made.files[0].with_suffix('')}.csv, .md and .png")
