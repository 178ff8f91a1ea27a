"""`us3l pretrain`: one network, trained once without labels, for every width."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from us3l.commands.command import Command, settings_of, signed_by
from us3l.paper.scales import ScaleName
from us3l.setting_types import ANYTHING, PYTHON_ONLY, AnyPath, Data, Positional, SettingsOf
from us3l.system.errors import UserError
from us3l.training.recipes import AUTO, BEST, MINI, Recipe
from us3l.training.run_config import Machine

if TYPE_CHECKING:
    from typing import Unpack

    from us3l.commands.names import PretrainNames
    from us3l.commands.screen import CommandScreen
    from us3l.run import Run
    from us3l.system.progress import Progress
    from us3l.training.initial import Init
    from us3l.training.recipes import Network
    from us3l.training.run_config import RunConfig

    ConfigFile = AnyPath | RunConfig
else:
    ConfigFile = Annotated[AnyPath, ANYTHING]

COMMON = (
    "images", "size", "backbone", "init", "teacher", "base", "min_width", "epochs", "max_steps", "batch_size", "lr",
    "seed", "accelerator", "devices", "precision", "stream",
)  # fmt: skip
"""The settings that --help shows; --help-all shows all."""
NamedSettings = Annotated[dict[str, Any], SettingsOf((MINI, Machine()), COMMON), ANYTHING]


@dataclass(frozen=True)
class Pretrain(Command):
    """Train one network once, on images without labels, for every width.

    DATA is a folder of images, parquet files, or a known name such as cifar10 or digits (us3l download fetches some).
    The recipe auto, the default, looks at the images and at this machine, chooses, and says why. The values shown below
    are those of the recipe mini. What you give is not changed. All settings: us3l pretrain --help-all

    Afterwards use us3l evaluate RUN, us3l report RUN or us3l export RUN.

    examples:
      us3l pretrain photos/ --out runs/photos
      us3l pretrain photos/ --out runs/large --size 224 --base 64 --epochs 100
      us3l pretrain photos/ --out runs/slim --init torchvision:mobilenet_v2 --recipe slim
      us3l pretrain --out runs/photos --resume
      torchrun --nproc-per-node 8 -m us3l pretrain photos/ --out runs/photos --resume
      us3l pretrain digits --out runs/byol --method byol --individual 0.5
      us3l pretrain photos/ --out runs/seed --method seed --teacher runs/photos --individual 0.25
      us3l pretrain photos/ --out runs/case3 --case app-ablation/3
      us3l pretrain photos/ --out runs/again --config runs/photos/config.yaml
    """

    data: Annotated[Data | None, Positional("DATA")] = None
    """Images to learn from (not needed with --resume or --config)."""
    out: AnyPath | None = None
    """The run's folder, which must not exist yet."""
    _: KW_ONLY
    resume: bool = False
    """Continue the run in `out` from its last checkpoint; if there is no such run yet and DATA is given, start it."""
    recipe: str | None = None
    """Where all settings start, by a name that us3l recipes lists: slim (with --init), mini, mini-photos, photos and
    others (default: auto, which fits the images and this machine)."""
    method: str | None = None
    """Another method, such as us3l (the paper's), us-simsiam or byol: see us3l recipes (default: the recipe's; auto
    takes us3l-plus)."""
    case: str | None = None
    """A row of one of the paper's tables, such as app-ablation/23 or main-cifar100/9."""
    scale: ScaleName = "mini"
    """Train a `case` with its recipe for CPUs (mini), as us3l reproduce does at small scale, or as the paper did."""
    config: ConfigFile | None = None
    """Start from the settings of another run: its config.yaml."""
    network: Annotated[Callable[[Any], Any] | None, PYTHON_ONLY, ANYTHING] = None
    """A function from a width to a network of your own, instead of a backbone by name (`backbone="MODULE:NAME"` imports
    it)."""
    settings: NamedSettings = field(default_factory=dict)
    """Those that are given, by their bare names: all others are chosen."""


def pretrained(settings: Pretrain) -> Run:
    """Do the work of `pretrain`."""
    from us3l.families.family import qualified_name
    from us3l.run import Run
    from us3l.run.cards import write_card
    from us3l.run.identity import name_of
    from us3l.system.files import check_name
    from us3l.system.progress import progress_of
    from us3l.training.configuration import configuration, family_named, name_of_init, open_start, resumed, train
    from us3l.training.run_config import config_of

    if settings.out is None:
        raise UserError("say where the run should go: `out='runs/NAME'`")
    check_name(settings.out)
    changes = dict(settings.settings)
    init: Init | None = changes.pop("init", None)
    teacher: Init | None = changes.get("teacher")
    network = settings.network or family_named(changes)
    run, progress = Run(settings.out, network), progress_of(settings.progress)
    if teacher is not None:
        changes["teacher"] = name_of_init(teacher)
    start = None
    if settings.resume and run.started:
        if network is not None and config_of(run).recipe.network.user_defined:
            # By whichever name: its shapes are compared.
            changes.pop("backbone", None)
        changes |= {} if init is None else {"init": name_of_init(init)}
        chosen = resumed(run, settings.data, settings.config, changes)
    else:
        run.refuse_if_used()
        named = {} if network is None else {"backbone": f"{network.__module__}:{qualified_name(network)}"}
        changes = named | changes
        start = None if init is None else open_start(init, network)
        config, method = automatic_unless_named(settings, changes, progress, start)
        recipe = None if settings.recipe == AUTO else settings.recipe
        chosen = configuration(name_of(settings.data), recipe, method, config, start, changes, case_of(settings))
        if not chosen.data:
            if settings.resume:
                run.check_started()
            raise UserError(
                "say which images to learn from, such as a folder: `us3l.pretrain('photos/', out='runs/photos')`; "
                "for a first try without any, take 'digits'"
            )
    train(chosen, run, settings.data, settings.resume, progress, init if start is None else start, teacher)
    if run.finished:
        write_card(run)
    return run


def automatic_unless_named(
    settings: Pretrain, changes: Mapping[str, Any], progress: Progress, start: Any
) -> tuple[AnyPath | RunConfig | None, str | None]:
    """Return where the settings of a new run start, and its method: chosen here, unless they are named."""
    from us3l.run.identity import name_of
    from us3l.training.configuration import automatic

    data, named = settings.data, settings.config is not None or settings.case is not None
    if data is None or not name_of(data) or named or settings.recipe not in (None, AUTO):
        return settings.config, settings.method
    method = settings.method or BEST
    return automatic(data, changes, progress, start, method), method


def case_of(settings: Pretrain) -> Callable[[Recipe | None], Recipe] | None:
    """Return what makes a recipe the row of the paper's tables that was asked for."""
    if settings.case is None:
        return None
    from us3l.paper.cases import case

    row = case(settings.case)
    return lambda recipe: row.at_scale(settings.scale) if recipe is None else row.apply(recipe)


@signed_by(Pretrain, pretrained)
def pretrain(data: Data | None = None, out: AnyPath | None = None, **settings: Unpack[PretrainNames]) -> Run:
    """Train one network once, on images without labels, for every width.

    Every setting of a recipe and of the machine can be given by its name, such as `epochs=50` or `min_width=0.5`:
    `us3l pretrain --help-all` lists them. `init` and `teacher` may also be networks in memory.

    Returns:
        The finished run.
    """
    names = {field.name for field in fields(Pretrain)} - {"settings"}
    rest = {name: value for name, value in settings.items() if name not in names}
    named = {name: value for name, value in settings.items() if name in names}
    return pretrained(settings_of(Pretrain, (data, out), named | {"settings": rest}))


def main(settings: Pretrain, screen: CommandScreen) -> None:
    from dataclasses import replace

    from us3l.commands import report
    from us3l.distributed.launching import is_first_rank
    from us3l.run import Run
    from us3l.training.run_config import config_of

    was_finished = settings.out is not None and Run(settings.out).finished
    run = pretrained(settings if is_first_rank() else replace(settings, progress=None))
    if not was_finished and is_first_rank():
        report.after(run.folder)
        screen.say(next_steps(run.folder, config_of(run).recipe.network))


def next_steps(folder: Path, network: Network) -> str:
    """Return what to do with a finished run."""
    from shlex import quote

    from us3l.commands.screen import program

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
  {us3l} export {run} --width {width:g}
      the network of that width, as a file"""
