"""`us3l.pretrain`, and what settles its settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from us3l.families.family import qualified_name
from us3l.paper.scales import ScaleName
from us3l.run import Run
from us3l.run.folder import Product
from us3l.run.identity import data_path
from us3l.system.errors import UserError
from us3l.system.progress import Progress, Told, progress_of
from us3l.training.recipes import AUTO, BEST, named
from us3l.training.run_config import Machine, RunConfig, config_of, read_run_config
from us3l.training.settings import changed, values
from us3l.verbs.arguments import name_of

if TYPE_CHECKING:
    from torch import nn

    from us3l.data.images import Images
    from us3l.data.sources import Data
    from us3l.training.initial import Init, Pretrained


def pretrain(
    data: Data | None = None,
    out: str | Path | None = None,
    *,
    recipe: str | None = None,
    method: str | None = None,
    case: str | None = None,
    scale: ScaleName = "mini",
    config: str | Path | RunConfig | None = None,
    network: Callable[[Any], nn.Module] | None = None,
    init: Init | None = None,
    teacher: Init | None = None,
    resume: bool = False,
    progress: Progress | Told | None = None,
    **settings: Any,
) -> Run:
    """Train one network once, on images without labels, for every width.

    Args:
        data: a folder of images, parquet files or shards by their path, a known name, a list of image files, pixels
            (a uint8 tensor, N x 3 x H x W), or a data set of torch.
        out: the run's folder, which must not exist yet.
        recipe: a named recipe, see `us3l recipes`; "auto", the default, chooses what fits the images and the computer,
            and says why. `settings` are left as they are given.
        method: a named method, such as "us3l" for the paper's (default: the recipe's; by "auto" it is "us3l-plus").
        case: a row of one of the paper's tables, such as "app-ablation/23".
        scale: train a `case` with its recipe for CPUs ("mini"), with that of `reproduce` at small scale ("small"), or
            as the paper did ("paper").
        config: settings of another run, as kept in its config.yaml.
        network: a function from a width to a network of your own, instead of a backbone by name
            (`backbone="MODULE:NAME"` imports it).
        init: start from a pretrained network: a .safetensors or .pth file of its weights, "torchvision:NAME",
            "timm:NAME", the folder of a run or a model, "hf:USER/NAME" (a model of us3l on the Hugging Face Hub), or a
            network in memory. It decides the backbone and the normalisation of images, unless you do.
        teacher: a pretrained network that the widths imitate, by the methods "imitate", "us3l-imitate", "seed" and
            "seed-mse": what `init` takes, any network in memory that makes vectors of images, or "init", the default.
        resume: continue the run in `out` from its last checkpoint; start it if there is none.
        progress: "silent" (the default), "lines", "live", or an object of your own.
        settings: any setting of `us3l pretrain` by its name, such as `epochs=50` or `min_width=0.5`.

    Returns:
        The finished run.
    """
    from us3l.run.cards import write_card

    if out is None:
        raise UserError("say where the run should go: `out='runs/NAME'`")
    network = network or own_family(settings)
    run, told = Run(out, network), progress_of(progress)
    start: Pretrained | Init | None = init
    if teacher is not None:
        settings["teacher"] = str(teacher) if isinstance(teacher, str | Path) else in_memory(teacher)
    if resume and run.started:
        if network is not None and config_of(run).recipe.network.own:  # by whichever name: its shapes are compared
            settings.pop("backbone", None)
        given = {} if init is None else {"init": str(init) if isinstance(init, str | Path) else in_memory(init)}
        chosen = resumed(run, data, config, **given, **settings)
    else:
        run.refuse_if_used()
        own = {} if network is None else {"backbone": f"{network.__module__}:{qualified_name(network)}"}
        settings = own | settings
        start = None if init is None else pretrained(init, network)
        if data is not None and name_of(data) and config is None and case is None and recipe in (None, AUTO):
            method = method or BEST
            config = automatic(data, settings, told, start, method)
        chosen = configuration(name_of(data), recipe, method, case, scale, config, start, **settings)
        if not chosen.data:
            if resume:
                run.check_started()
            raise UserError(
                "say which images to learn from, such as a folder: `us3l.pretrain('photos/', out='runs/photos')`; "
                "for a first try without any, take 'digits'"
            )
    train(chosen, run, data, resume, told, start, teacher)
    if run.finished:
        write_card(run)
    return run


def automatic(
    data: Data,
    settings: Mapping[str, Any],
    progress: Progress,
    start: Pretrained | None = None,
    method: str = BEST,
) -> RunConfig:
    """The settings that `recipe="auto"` means for some images on this computer, but for the method; it is said why.

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
    from us3l.training.automatic import choose
    from us3l.training.facts import look

    config = RunConfig("", named("photos"))
    checked = dict(values(changed(config if start is None else start.configure(config), **settings)))
    decided = () if start is None else ("init", "backbone", "base", "stem")
    given = {name: checked[name] for name in (*settings, *decided)}
    choice = choose(look(data, given, progress), given)
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
    from us3l.training.loop import pretrain as train_all

    told, recipe = progress_of(progress), config.recipe.settled()
    if resume and run.finished:
        told.say(f"{run.folder} is finished: its model is in {run.model}")
        return
    if config.recipe.network.stem == "auto" and recipe.network.stem == "imagenet":
        size = recipe.views.size
        told.say(f"images of {size} pixels: the first layers are those for large images (for small: `stem='cifar'`)")
    if resume and run.started:
        kept = config_of(run)
        config = replace(config, data=kept.data, data_path=kept.data_path, init_sha256=kept.init_sha256)
    else:
        config = config.located()
    source = start_of(config, run, init)
    if source is not None:
        config = replace(config, init_sha256=source.sha256)
    config = replace(config, recipe=recipe)
    train_all(config, run, lambda: training_images(config, data, told), resume, told, source, teacher)


def start_of(config: RunConfig, run: Run, init: Pretrained | Init | None) -> Pretrained | None:
    """The pretrained network that a run begins with, unless it has a state of its own already."""
    from us3l.run.checkpoints import has_checkpoint

    name = config.recipe.init
    if name is None or (run.started and has_checkpoint(run.checkpoints)):
        return None
    if init is None and name.startswith("<"):
        raise UserError(f"this run begins with a network in memory, {name}: give it again, init=...")
    source = pretrained(name if init is None else init, run.family)
    if config.init_sha256 not in ("", source.sha256):
        raise UserError(f"{name} has other weights than those that {run.folder} began with: start a new run")
    return source


def training_images(config: RunConfig, data: Data | None, progress: Progress) -> Images:
    """The images of a run, opened as its settings say."""
    from us3l.data.sources import open_for_training

    machine, views, own = config.machine, config.recipe.views, config.recipe.own_views
    if own is not None:
        views = replace(views, crop_scale=(min(own.crop_scale[0], views.crop_scale[0]), 1.0))
    return open_for_training(
        config.source if data is None else data,
        views,
        split="learn" if config.recipe.validation else "pretrain",
        limit=config.recipe.images,
        stream=machine.stream,
        memory=int(machine.memory_gib * 2**30),
        progress=progress,
    )


def with_weights(run: Run, weights: Product | None, progress: Progress) -> Run:
    """The run whose model has these weights: a run keeps one model or both, see `Objective.product`.

    A model that it did not keep is made of its last checkpoint, calibrated on the images of the training.

    Args:
        run: A run; if there are no `weights`, also a model's folder.
        weights: Whose; None means those that the run's model has.
        progress: Hears how it goes.
    """
    if weights is None:
        return run
    place = run.kept(weights)
    if not place.finished:
        from us3l.training.finishing import make_model

        config = config_of(run)
        config = replace(config, recipe=config.recipe.settled())
        make_model(config, run, weights, training_images(config, None, progress), progress)
    return place


def configuration(
    data: str = "",
    recipe: str | None = None,
    method: str | None = None,
    case: str | None = None,
    scale: ScaleName = "mini",
    config: str | Path | RunConfig | None = None,
    init: Pretrained | Init | None = None,
    **settings: Any,
) -> RunConfig:
    """All settings of a run: see `pretrain`."""
    recipe = None if recipe == AUTO else recipe
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
    else:
        chosen = RunConfig("", named(recipe or made_for or "mini"))
    if data:
        chosen = replace(chosen, data=data, data_path="")
    if method:
        chosen = replace(chosen, recipe=chosen.recipe.with_method(method))
    if case:
        from us3l.paper.cases import case as row

        given = recipe is not None or config is not None or made_for not in (None, "mini")
        applied = row(case).apply(chosen.recipe) if given else row(case).at_scale(scale)
        chosen = replace(chosen, recipe=applied)
    if init is not None:
        chosen = pretrained(init).configure(chosen)
    return changed(chosen, **settings)


def own_family(settings: Mapping[str, Any]) -> Callable[[Any], nn.Module] | None:
    """The network of the user's own that settings name as their `backbone`, if they do."""
    from us3l.families.user_families import import_family

    backbone = settings.get("backbone")
    return import_family(backbone) if isinstance(backbone, str) and ":" in backbone else None


def in_memory(network: Init) -> str:
    """What config.yaml calls a network that a Python program gave."""
    from us3l.training.initial import name_in_memory

    return name_in_memory(network)


def pretrained(init: Pretrained | Init, family: Callable[[Any], nn.Module] | None = None) -> Pretrained:
    """A pretrained network: see `us3l.training.initial`, which brings torch."""
    from us3l.training.initial import Pretrained, open_pretrained

    return init if isinstance(init, Pretrained) else open_pretrained(init, family)


def resumed(
    run: Run, data: Data | None = None, config: str | Path | RunConfig | None = None, **settings: Any
) -> RunConfig:
    """The settings of a resumed run: its own; only how it is computed may change."""
    chosen = changed(config if isinstance(config, RunConfig) else config_of(run), **settings)
    if isinstance(data, str | Path):
        chosen = replace(chosen, data=str(data), data_path="")
    check_settled(run, chosen)
    return chosen


def check_settled(run: Run, config: RunConfig) -> None:
    """That a resumed run keeps its settings: all but how it is computed."""

    def settled(config: RunConfig) -> RunConfig:
        now = config.machine
        machine = Machine(stream=now.stream, memory_gib=now.memory_gib)
        data = data_path(config.source) or config.data
        return RunConfig(data, config.recipe.settled(), machine)

    if settled(config) != settled(config_of(run)):
        raise UserError(f"a resumed run keeps its settings, those in {run.config_file}; leave out what changes them")
