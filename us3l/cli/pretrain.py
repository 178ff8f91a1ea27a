"""`us3l pretrain`"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote
from typing import Annotated

import tyro

from us3l.cli.parse import parse, program
from us3l.console import Console
from us3l.errors import UserError
from us3l.paper.scales import ScaleName
from us3l.run import Run
from us3l.training.recipes import Network, Recipe
from us3l.training.run import Machine, RunConfig, config_of
from us3l.verbs.pretraining import check_settled, configuration

HELP = Path(__file__).with_suffix(".txt")


@dataclass(frozen=True)
class Pretrain:
    """Train one network once, on images without labels, for every width.

    DATA is a folder of images, parquet files, or a known name such as cifar10 or digits. Every setting of the recipe
    can be changed by its name.

    examples:
      us3l pretrain digits --out runs/digits
      us3l pretrain photos/ --out runs/photos --recipe mini --epochs 50 --size 48
      us3l pretrain --out runs/photos --resume
      torchrun --nproc-per-node 8 -m us3l pretrain photos/ --out runs/photos --resume
      us3l pretrain photos/ --out runs/half --method byol --individual 0.5
      us3l pretrain photos/ --out runs/seed --method seed --teacher runs/photos --individual 0.25
      us3l pretrain photos/ --out runs/case3 --case app-ablation/3
      us3l pretrain photos/ --out runs/again --config runs/photos/config.yaml
    """

    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")] = ""
    """Images to learn from; --resume and --config know theirs."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="RUN")] = None
    """The run's folder, made anew."""
    recipe_name: Annotated[str | None, tyro.conf.arg(name="recipe")] = None
    """A named recipe: see `us3l recipes` (default: digits for digits, else mini)."""
    method: str | None = None
    """A named method instead of US3L, such as us-simsiam or byol: see `us3l recipes`."""
    case: str | None = None
    """A row of one of the paper's tables, such as app-ablation/23 or main-cifar100/9."""
    scale: ScaleName = "mini"
    """Train a --case with its recipe for CPUs, with that of us3l reproduce at small scale, or as the paper did."""
    config: Path | None = None
    """Settings of another run, as kept in its config.yaml."""
    resume: bool = False
    """Go on with the run in --out from its last checkpoint; if there is none yet and DATA is given, start it."""
    recipe: Recipe = field(default_factory=Recipe)
    machine: Machine = field(default_factory=Machine)


def main(arguments: list[str]) -> int:
    if "-h" in arguments or "--help" in arguments:
        print(HELP.read_text(encoding="utf-8"), end="")
        return 0
    arguments = ["--help" if argument == "--help-all" else argument for argument in arguments]
    command = parse(Pretrain, "pretrain", arguments, defaults(arguments, "mini"))
    from us3l.data.named import recommended_recipe

    if (recipe := recommended_recipe(command.data)) != "mini":
        command = parse(Pretrain, "pretrain", arguments, defaults(arguments, recipe))
    if command.out is None:
        raise UserError("say where the run should go: --out RUN")
    run = Run(command.out)
    if not command.data:
        if command.resume:
            raise UserError(
                f"{run.folder} is not a run: there is no config.yaml in it. To start one there, name its DATA"
            )
        raise UserError(
            "say which images to learn from: us3l pretrain DATA --out RUN, with a folder of images as DATA; "
            "for a first try without any, us3l demo"
        )
    config = RunConfig(command.data, command.recipe.settled(), command.machine)
    if command.resume and run.started:
        check_settled(run, config)
        if run.finished:
            Console().say(f"{run.folder} is finished: its model is in {run.model}")
            return 0
    elif run.folder.exists():
        run.refuse_if_used()
    from us3l.cli import report

    if command.recipe.network.stem == "auto" and config.recipe.network.stem == "imagenet":
        side = config.recipe.views.size
        Console().say(f"images of {side} pixels: the first layers are those for large images (--stem cifar: for small)")
    code = execute(config, run, command.resume) or report.after(run.folder)
    if not code and report.is_first():
        Console().say(next_steps(run.folder, config.recipe.network))
    return code


def next_steps(folder: Path, network: Network) -> str:
    """What to do with a finished run."""
    width = max(0.5, network.min_width) if network.individual is None else 1.0
    us3l, run = program(), quote(str(folder))
    return f"""
What next:
  {us3l} report {run}
      the page again, after anything new is measured
  {us3l} evaluate {run} --data LABELLED/
      accuracy at nine widths, with a folder of labelled images
  {us3l} profile {run}
      cost and latency of every width on this computer
  {us3l} export {run} --widths {width:g}
      the network of that width, as a file"""


def defaults(arguments: list[str], recipe: str) -> Pretrain:
    """The values that the rest of the command line changes: of another run, of the run to resume, or of a recipe.

    `recipe` is taken where the command line names none.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for option in ("--recipe", "--method", "--case", "--scale", "--base-loss"):
        parser.add_argument(option)
    for option in ("--config", "--out"):
        parser.add_argument(option, type=Path)
    parser.add_argument("--resume", action="store_true")
    try:
        early, _ = parser.parse_known_args(arguments)
    except argparse.ArgumentError:  # tyro will say it better
        return Pretrain()
    if early.resume and early.out and Run(early.out).started:
        config = config_of(Run(early.out))
    else:
        chosen = early.recipe or (None if early.config or recipe == "mini" else recipe)
        config = configuration("", chosen, early.method, early.case, early.scale or "mini", early.config)
        if early.base_loss:
            config = replace(config, recipe=config.recipe.tuned_for(early.base_loss))
    return Pretrain(config.source, recipe=config.recipe, machine=config.machine)


def execute(config: RunConfig, run: Run, resume: bool = False) -> int:
    """Run a pre-training and say how it ended."""
    from us3l.cli.screen import CommandScreen
    from us3l.verbs.pretraining import train

    train(config, run, resume=resume, progress=CommandScreen())
    return 0
