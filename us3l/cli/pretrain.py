"""`us3l pretrain`"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro

from us3l.cli.parse import parse, program
from us3l.console import Console
from us3l.errors import UserError
from us3l.run import Run
from us3l.training.recipes import Recipe, named
from us3l.training.run import Machine, RunConfig, config_of


@dataclass(frozen=True)
class Pretrain:
    """Train one network once, on images without labels, for every width.

    DATA is `digits`, another known name, a folder of images, or parquet files. Every setting of the recipe can be
    changed by its name.

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

    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")] = "digits"
    """Images to learn from."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="RUN")] = None
    """The run's folder, made anew."""
    recipe_name: Annotated[str | None, tyro.conf.arg(name="recipe")] = None
    """A named recipe: see `us3l recipes` (default: digits for digits, else mini)."""
    method: str | None = None
    """A named method instead of US3L, such as us-simsiam or byol: see `us3l recipes`."""
    case: str | None = None
    """A row of one of the paper's tables, such as app-ablation/23 or main-cifar100/9."""
    scale: Literal["mini", "paper"] = "mini"
    """Train a --case with its recipe for CPUs, or as the paper did."""
    config: Path | None = None
    """Settings of another run, as kept in its config.yaml."""
    resume: bool = False
    """Go on with the run in --out from its last checkpoint; if there is none yet and DATA is given, start it."""
    recipe: Recipe = field(default_factory=Recipe)
    machine: Machine = field(default_factory=Machine)


def main(arguments: list[str]) -> int:
    command = parse(Pretrain, "pretrain", arguments, defaults(arguments, "mini"))
    if command.data == "digits":  # which has a recipe of its own
        command = parse(Pretrain, "pretrain", arguments, defaults(arguments, "digits"))
    if command.out is None:
        raise UserError("say where the run should go: --out RUN")
    run = Run(command.out)
    config = RunConfig(command.data, command.recipe, command.machine)
    if command.resume and not command.data:
        raise UserError(f"{run.folder} is not a run: there is no config.yaml in it. To start one there, name its DATA")
    if command.resume and run.started:
        if settled(config) != settled(config_of(run)):
            raise UserError(
                f"a resumed run keeps its settings, those in {run.config_file}; leave out what changes them"
            )
        if run.finished:
            Console().say(f"{run.folder} is finished: its model is in {run.model}")
            return 0
    elif run.folder.exists():
        run.refuse_if_used()
    from us3l.cli import report

    return execute(config, run, command.resume) or report.after(run.folder)


def settled(config: RunConfig) -> RunConfig:
    """What stays when a run is resumed: all but how it is computed."""
    return replace(config, machine=Machine(stream=config.machine.stream))


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
    going_on = early.resume and early.out and Run(early.out).started
    if going_on:
        config = config_of(Run(early.out))
    elif early.config:
        if not early.config.is_file():
            raise UserError(f"there is no file {early.config}")
        from us3l.run.config import read_config

        config = read_config(early.config, RunConfig)
    else:
        config = RunConfig("" if early.resume else "digits", named(early.recipe or recipe))
    if early.method and not going_on:
        config = replace(config, recipe=config.recipe.with_method(early.method))
    if early.case and not going_on:
        from us3l.paper.cases import case

        chosen = case(early.case)
        given = early.recipe or early.config or recipe != "mini"
        changed = chosen.apply(config.recipe) if given else chosen.at_scale(early.scale or "mini")
        config = replace(config, recipe=changed)
    if early.base_loss and not going_on:
        config = replace(config, recipe=config.recipe.tuned_for(early.base_loss))
    return Pretrain(config.data, recipe=config.recipe, machine=config.machine)


def execute(config: RunConfig, run: Run, resume: bool = False) -> int:
    """Run a pre-training and say how it ended."""
    from us3l.cli.data import training_images
    from us3l.training.loop import pretrain
    from us3l.training.trouble import Interrupted

    console, recipe = Console(), config.recipe
    try:
        pretrain(
            config,
            run,
            lambda: training_images(console, config.data, recipe.views.size, recipe.images, config.machine.stream),
            resume,
            console,
        )
    except Interrupted as stop:
        Console(stderr=True).say(f"us3l: {stop}. Go on with: {program()} pretrain --out {run.folder} --resume")
        return 130
    return 0
