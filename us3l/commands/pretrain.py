"""`us3l pretrain`"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import tyro

from us3l.commands.parse import flags, parse, plain, program
from us3l.paper.scales import ScaleName
from us3l.run import Run
from us3l.training.recipes import AUTO, Network, Recipe
from us3l.training.run_config import Machine, config_of
from us3l.training.settings import values
from us3l.verbs.pretraining import configuration


@dataclass(frozen=True)
class Pretrain:
    """Train one network once, on images without labels, for every width.

    DATA is a folder of images, parquet files, or a known name such as cifar10 or digits. What fits the images and this
    computer is chosen and said; every setting can be changed by its name.

    examples:
      us3l pretrain digits --out runs/digits
      us3l pretrain photos/ --out runs/photos
      us3l pretrain photos/ --out runs/small --recipe mini --epochs 50 --size 48
      us3l pretrain photos/ --out runs/slim --init torchvision:mobilenet_v2 --recipe slim
      us3l pretrain --out runs/photos --resume
      torchrun --nproc-per-node 8 -m us3l pretrain photos/ --out runs/photos --resume
      us3l pretrain photos/ --out runs/half --method byol --individual 0.5
      us3l pretrain photos/ --out runs/seed --method seed --teacher runs/photos --individual 0.25
      us3l pretrain photos/ --out runs/case3 --case app-ablation/3
      us3l pretrain photos/ --out runs/again --config runs/photos/config.yaml
    """

    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")] = ""
    """Images to learn from (not needed with --resume or --config)."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="RUN")] = None
    """The run's folder, which must not exist yet."""
    recipe_name: Annotated[str, tyro.conf.arg(name="recipe")] = AUTO
    """A named recipe, see `us3l recipes`; auto chooses what fits the images and this machine, and says why. The
    defaults shown here are then those of mini."""
    method: str | None = None
    """A named method, such as us3l (the paper's), us-simsiam or byol: see `us3l recipes` (default: the recipe's; auto
    takes us3l-plus)."""
    case: str | None = None
    """A row of one of the paper's tables, such as app-ablation/23 or main-cifar100/9."""
    scale: ScaleName = "mini"
    """Train a --case with its recipe for CPUs (mini), as us3l reproduce does at small scale, or as the paper did."""
    config: Path | None = None
    """Start from the settings of another run: its config.yaml."""
    resume: bool = False
    """Continue the run in --out from its last checkpoint; if there is no such run yet and DATA is given, start it."""
    recipe: Recipe = field(default_factory=Recipe)
    machine: Machine = field(default_factory=Machine)


def main(arguments: list[str]) -> None:
    if "-h" in arguments or "--help" in arguments:
        print(Path(__file__).with_suffix(".txt").read_text(encoding="utf-8"), end="")
        return
    arguments = ["--help" if argument == "--help-all" else argument for argument in arguments]
    command = parse(Pretrain, "pretrain", arguments, defaults(arguments))
    from us3l.commands import report
    from us3l.commands.screen import CommandScreen
    from us3l.distributed.launching import is_first_rank
    from us3l.verbs import pretrain

    was_finished = command.out is not None and Run(command.out).finished
    screen = CommandScreen()
    chosen = {name: getattr(command, name) for name in ("method", "case", "scale", "config", "resume")}
    settings = {"recipe": command.recipe_name, **chosen, **given(command, arguments)}
    run = pretrain(command.data, command.out, progress=screen if is_first_rank() else None, **settings)
    if not was_finished and is_first_rank():
        report.after(run.folder)
        screen.say(next_steps(run.folder, config_of(run).recipe.network))


def given(command: Pretrain, arguments: list[str]) -> dict[str, Any]:
    """The settings that were typed, by their bare names: all others are the verb's to choose."""
    typed = {
        word.partition("=")[0].removeprefix("--").replace("-", "_").removeprefix("no_")
        for word in plain(arguments, flags(Pretrain))
        if word.startswith("--")
    }
    known = (*values(command.recipe), *values(command.machine))
    return {name: value for name, value in known if name in typed}


def defaults(arguments: list[str]) -> Pretrain:
    """The values that the rest of the command line changes: of the run to resume, of another run, or of a recipe."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for option in ("--recipe", "--method", "--case", "--scale", "--base-loss", "--config", "--out", "--init"):
        parser.add_argument(option)
    parser.add_argument("--resume", action="store_true")
    try:
        early, _ = parser.parse_known_args(arguments)
    except argparse.ArgumentError:  # tyro will say it better
        return Pretrain()
    if early.resume and early.out and Run(early.out).started:
        config = config_of(Run(early.out))
    else:
        config = configuration(
            "", early.recipe, early.method, early.case, early.scale or "mini", early.config, early.init
        )
        if early.base_loss:
            config = replace(config, recipe=config.recipe.tuned_for(early.base_loss))
    return Pretrain(config.source, recipe=config.recipe, machine=config.machine)


def next_steps(folder: Path, network: Network) -> str:
    """What to do with a finished run."""
    width = max(0.5, network.min_width) if network.individual is None else 1.0
    us3l, run = program(), quote(str(folder))
    return f"""
What next:
  {us3l} report {run}
      the report page again
  {us3l} evaluate {run} --data LABELLED/
      accuracy at nine widths, with a folder of labelled images
  {us3l} profile {run}
      cost and latency of every width on this machine
  {us3l} export {run} --widths {width:g}
      the network of that width, as a file"""
