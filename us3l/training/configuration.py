"""From what is asked of a run to its complete settings, and from these to its training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from us3l.run import Run
from us3l.run.identity import data_path, name_of
from us3l.system.errors import UserError
from us3l.system.progress import Progress, progress_of
from us3l.training.recipes import BEST, Recipe, named
from us3l.training.run_config import Machine, RunConfig, changed, config_of, read_run_config, values

if TYPE_CHECKING:
    from torch import nn

    from us3l.data.images import Images
    from us3l.data.sources import Data
    from us3l.training.initial import Init, Pretrained


def automatic(
    data: Data,
    settings: Mapping[str, Any],
    progress: Progress,
    start: Pretrained | None = None,
    method: str = BEST,
) -> RunConfig:
    """Return the settings that `recipe="auto"` means for some images on this computer, but for the method; say why.

    Args:
        data: See `pretrain`.
        settings: Those that are given, by their bare names.
        progress: Told what is chosen.
        start: A pretrained network, which decides about the network.
        method: That will be trained by.
    """
    from us3l.data.datasets import recommended_recipe

    if made_for := recommended_recipe(name_of(data)):
        progress.say(f"recipe {made_for}, which is made for {data}, by {method}; for another: `recipe=NAME`")
        return RunConfig("", named(made_for))
    from us3l.training.auto import choose, look

    config = RunConfig("", named("photos"))
    checked = dict(values(changed(config if start is None else start.configure(config), **settings)))
    decided = () if start is None else ("init", "backbone", "base", "stem")
    fixed = {name: checked[name] for name in (*settings, *decided)}
    choice = choose(look(data, fixed, progress), fixed)
    for line in (f"{choice.what}, method {method}", choice.why, choice.otherwise):
        progress.say(line)
    for line in choice.warnings:
        progress.say(line, style="yellow")
    return choice.config


def train(
    config: RunConfig,
    run: Run,
    data: Data | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    init: Pretrained | Init | None = None,
    teacher: Init | None = None,
) -> None:
    """Train by settings that are complete; networks and images are only needed where the settings cannot name them."""
    from us3l.training.loop import train as train_all

    screen, recipe = progress_of(progress), config.recipe
    if resume and run.finished:
        screen.say(f"{run.folder} is finished: its model is in {run.model}")
        return
    if recipe.network.stem == "auto" and recipe.resolved().network.stem == "imagenet":
        size = recipe.views.size
        screen.say(f"images of {size} pixels: the first layers are those for large images (for small: `stem='cifar'`)")
    if resume and run.started:
        kept = config_of(run)
        config = replace(config, data=kept.data, data_path=kept.data_path, init_sha256=kept.init_sha256)
    else:
        config = config.located()
    source = start_of(config, run, init)
    if source is not None:
        config = replace(config, init_sha256=source.sha256)
    train_all(config, run, lambda: training_images(config, data, screen), resume, screen, source, teacher)


def start_of(config: RunConfig, run: Run, init: Pretrained | Init | None) -> Pretrained | None:
    """Return the pretrained network that a run begins with, unless it has a state of its own already."""
    from us3l.run.checkpoints import has_checkpoint

    begun = run.started and has_checkpoint(run.checkpoints)
    return None if begun else open_start_of(config, run, init)


def open_start_of(config: RunConfig, run: Run, init: Pretrained | Init | None = None) -> Pretrained | None:
    """Return the pretrained network that a run begins with, or began with; None: random weights.

    Raises:
        UserError: It cannot be opened, or is not the one that the run began with.
    """
    name = config.recipe.init
    if name is None:
        return None
    if init is None and name.startswith("<"):
        raise UserError(f"this run begins with a network in memory, {name}: give it again, init=...")
    source = open_start(name if init is None else init, run.family)
    if config.init_sha256 not in ("", source.sha256):
        raise UserError(f"{name} has other weights than those that {run.folder} began with: start a new run")
    return source


def training_images(config: RunConfig, data: Data | None, progress: Progress) -> Images:
    """Open the images of a run, as its settings say."""
    from us3l.data.sources import open_for_training

    machine, views, sub_views = config.machine, config.recipe.views, config.recipe.sub_views
    if sub_views is not None:
        views = replace(views, crop_scale=(min(sub_views.crop_scale[0], views.crop_scale[0]), 1.0))
    return open_for_training(
        config.source if data is None else data,
        views,
        split="learn" if config.recipe.validation else "pretrain",
        limit=config.recipe.images,
        stream=machine.stream,
        memory=int(machine.memory_gib * 2**30),
        progress=progress,
    )


def configuration(
    data: str = "",
    recipe: str | None = None,
    method: str | None = None,
    config: str | Path | RunConfig | None = None,
    start: Pretrained | None = None,
    settings: Mapping[str, Any] | None = None,
    case: Callable[[Recipe | None], Recipe] | None = None,
) -> RunConfig:
    """Return all settings of a run.

    Args:
        data: The images, as config.yaml names them (default: those of `config`).
        recipe: A recipe's name (default: the one that is made for the data, or mini).
        method: A method's name, which changes the recipe.
        config: Settings of another run, or the path of its config.yaml, in place of a recipe.
        start: A pretrained network to start from, which decides about the network.
        settings: New values by their bare names, which come last.
        case: Makes a recipe a row of the paper's tables; None asks for the recipe of that row.
    """
    made_for = None
    if data:
        from us3l.data.datasets import recommended_recipe

        made_for = recommended_recipe(data)
    if isinstance(config, RunConfig):
        chosen = config
    elif config is not None:
        if not Path(config).is_file():
            raise UserError(f"there is no file {config}")
        chosen = read_run_config(Path(config))
        chosen = replace(chosen, data=chosen.source, data_path="")
    else:
        chosen = RunConfig("", named(recipe or made_for or "mini"))
    if data:
        chosen = replace(chosen, data=data, data_path="")
    if method:
        chosen = replace(chosen, recipe=chosen.recipe.with_method(method))
    if case:
        by_name = recipe is not None or config is not None or made_for not in (None, "mini")
        chosen = replace(chosen, recipe=case(chosen.recipe if by_name else None))
    if start is not None:
        chosen = start.configure(chosen)
    return changed(chosen, **settings or {})


def family_named(settings: Mapping[str, Any]) -> Callable[[Any], nn.Module] | None:
    """Return the user's own network that settings name as their `backbone`, if they do."""
    from us3l.families.user_families import import_family

    backbone = settings.get("backbone")
    return import_family(backbone) if isinstance(backbone, str) and ":" in backbone else None


def name_of_init(init: Init) -> str:
    """Return what config.yaml calls a pretrained network: its path or name, or a description of one in memory."""
    if isinstance(init, str | Path):
        return str(init)
    from us3l.training.initial import name_in_memory

    return name_in_memory(init)


def open_start(init: Pretrained | Init, family: Callable[[Any], nn.Module] | None = None) -> Pretrained:
    """Open a pretrained network: see `us3l.training.initial`, which brings torch."""
    from us3l.training.initial import Pretrained, open_pretrained

    return init if isinstance(init, Pretrained) else open_pretrained(init, family)


def resumed(
    run: Run,
    data: Data | None = None,
    config: str | Path | RunConfig | None = None,
    settings: Mapping[str, Any] | None = None,
) -> RunConfig:
    """Return the settings of a resumed run: its own; only how it is computed may change."""
    chosen = changed(config if isinstance(config, RunConfig) else config_of(run), **settings or {})
    if isinstance(data, str | Path):
        chosen = replace(chosen, data=str(data), data_path="")
    check_kept(run, chosen)
    return chosen


def check_kept(run: Run, config: RunConfig) -> None:
    """Raise a `UserError` if a resumed run would not keep its settings: all but how it is computed."""

    def lasting(config: RunConfig) -> RunConfig:
        now = config.machine
        machine = Machine(stream=now.stream, memory_gib=now.memory_gib)
        data = data_path(config.source) or config.data
        return RunConfig(data, config.recipe.resolved(), machine)

    if lasting(config) != lasting(config_of(run)):
        raise UserError(f"a resumed run keeps its settings, those in {run.config_file}; leave out what changes them")
