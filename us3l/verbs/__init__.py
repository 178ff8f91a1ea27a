"""What the commands do, as functions of the same names with the same settings.

They take a run (a `Run`, or the path of its folder; where it makes sense a network in memory) and return results as
objects. They print nothing unless `progress` asks for it. Only what is named here is imported at once: torch comes
with the first call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from inspect import signature
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from us3l.errors import UserError
from us3l.families.family import qualified_name
from us3l.progress import Progress, Told, progress_of
from us3l.run import Run
from us3l.run.identity import data_path
from us3l.training.recipes import named
from us3l.training.run import Machine, RunConfig, config_of
from us3l.training.settings import changed, check_known, with_settings

if TYPE_CHECKING:
    from torch import nn

    from us3l.data.sources import Data
    from us3l.deploy.backends import Backend
    from us3l.deploy.exporting import Exported
    from us3l.deploy.picking import Picked
    from us3l.deploy.profiling import Profiled
    from us3l.evaluation.comparing import Comparison
    from us3l.reporting.reproduction import Reproduction
    from us3l.run.bundles import Format
    from us3l.run.detections import DetectionRecord
    from us3l.run.evaluations import EvaluationRecord
    from us3l.slimmable import Slimmable

AnyRun = Run | str | Path
T = TypeVar("T")


def pretrain(
    data: Data | None = None,
    out: str | Path | None = None,
    *,
    recipe: str | None = None,
    method: str | None = None,
    case: str | None = None,
    scale: Literal["mini", "paper"] = "mini",
    config: str | Path | RunConfig | None = None,
    network: Callable[[Any], nn.Module] | None = None,
    resume: bool = False,
    progress: Progress | Told | None = None,
    **settings: Any,
) -> Run:
    """Train one network once, on images without labels, for every width.

    Args:
        data: a folder of images, parquet files or shards by their path, a known name, a list of image files, pixels
            (a uint8 tensor, N x 3 x H x W), or a data set of torch.
        out: the run's folder, made anew.
        recipe: a named recipe, see `us3l recipes` (default: the one that suits the data).
        method: a named method instead of US3L, such as "us-simsiam".
        case: a row of one of the paper's tables, such as "app-ablation/23".
        scale: train a `case` with its recipe for CPUs ("mini") or as the paper did ("paper").
        config: settings of another run, as kept in its config.yaml.
        network: a function from a width to a network of your own, instead of a backbone by name.
        resume: continue the run in `out` from its last checkpoint; start it if there is none.
        progress: "silent" (the default), "lines", "live", or an object of your own.
        settings: any setting of `us3l pretrain` by its name, such as `epochs=50` or `min_width=0.5`.

    Returns:
        The finished run.
    """
    if out is None:
        raise UserError("say where the run should go: `out='runs/NAME'`")
    run = Run(out, network)
    if resume and run.started:
        chosen = resumed(run, **settings)
    else:
        own = {} if network is None else {"backbone": f"{network.__module__}:{qualified_name(network)}"}
        chosen = configuration(name_of(data), recipe, method, case, scale, config, **own, **settings)
        if not chosen.data:
            raise UserError("say which images to learn from: a folder, a known name, a list of files or a tensor")
    train(chosen, run, data, resume, progress_of(progress))
    return run


def train(
    config: RunConfig, run: Run, data: Data | None = None, resume: bool = False, progress: Progress | None = None
) -> None:
    """Train by settings that are complete; `data` is only needed where the settings cannot name it."""
    from us3l.data.sources import TRAINING_MEMORY, open_images
    from us3l.training.loop import pretrain as train_all

    told, recipe = progress_of(progress), config.recipe.settled()
    if resume and run.started:
        kept = config_of(run)
        config = replace(config, data=kept.data, data_path=kept.data_path)
    else:
        config = config.located()

    def images() -> Any:
        return open_images(
            config.source if data is None else data,
            "pretrain",
            recipe.views.size,
            limit=recipe.images,
            stream=config.machine.stream,
            memory=TRAINING_MEMORY,
            progress=told,
        )

    if resume and run.finished:
        return
    train_all(replace(config, recipe=recipe), run, images, resume, told)


def configuration(
    data: str = "",
    recipe: str | None = None,
    method: str | None = None,
    case: str | None = None,
    scale: Literal["mini", "paper"] = "mini",
    config: str | Path | RunConfig | None = None,
    **settings: Any,
) -> RunConfig:
    """All settings of a run: see `pretrain`."""
    suited = "mini"
    if data:
        from us3l.data.named import recommended_recipe

        suited = recommended_recipe(data)
    if isinstance(config, RunConfig):
        chosen = config
    elif config is not None:
        from us3l.run.config import read_config

        if not Path(config).is_file():
            raise UserError(f"there is no file {config}")
        chosen = read_config(Path(config), RunConfig)
    else:
        chosen = RunConfig("", named(recipe or suited))
    if data:
        chosen = replace(chosen, data=data, data_path="")
    if method:
        chosen = replace(chosen, recipe=chosen.recipe.with_method(method))
    if case:
        from us3l.paper.cases import case as row

        given = recipe is not None or config is not None or suited != "mini"
        applied = row(case).apply(chosen.recipe) if given else row(case).at_scale(scale)
        chosen = replace(chosen, recipe=applied)
    return changed(chosen, **settings)


def resumed(run: Run, **settings: Any) -> RunConfig:
    """The settings of a resumed run: its own; only how it is computed may change."""
    config = changed(config_of(run), **settings)
    check_settled(run, config)
    return config


def check_settled(run: Run, config: RunConfig) -> None:
    """That a resumed run keeps its settings: all but how it is computed."""

    def settled(config: RunConfig) -> RunConfig:
        machine = Machine(stream=config.machine.stream)
        data = data_path(config.source) or config.data
        return RunConfig(data, config.recipe.settled(), machine)

    if settled(config) != settled(config_of(run)):
        raise UserError(f"a resumed run keeps its settings, those in {run.config_file}; leave out what changes them")


def evaluate(
    run: AnyRun | Slimmable,
    data: Data | None = None,
    *,
    test_data: Data | None = None,
    data_root: str | Path | None = None,
    train_images: int | None = None,
    test_images: int | None = None,
    stream: bool = False,
    memory_gib: float = 4.0,
    name: str | None = None,
    overwrite: bool = False,
    progress: Progress | Told | None = None,
    **settings: Any,
) -> EvaluationRecord:
    """Accuracy at each width, measured on labelled images.

    Args:
        run: a run, the path of its folder, or a network; of a network nothing is written.
        data: labelled images (default: those that the run was trained on).
        test_data: images to test on (default: the test part of `data`, a fifth of it if there is none).
        data_root: where data sets that have a name lie (default: the environment's US3L_DATA, else ./data).
        train_images: learn from only this many images (default: all, or the number that the run itself used).
        test_images: test on only this many images, the same number per class (default: all).
        stream: decode images anew whenever they are needed, also if they would fit into memory.
        memory_gib: memory for decoded images; larger sets are streamed.
        name: of the result, eval/NAME.json (default: the data's, followed by the protocol's unless that is fast).
        overwrite: replace an earlier result of that name, instead of adding widths to it.
        progress: "silent" (the default), "lines", "live", or an object of your own.
        settings: those of `us3l evaluate`, such as `widths=(1, 0.5)`, `protocol="paper"` or `device="cuda"`.

    Returns:
        The record that was kept; `rows` has a dictionary per width.
    """
    from us3l.data.preprocessing import Preprocessing
    from us3l.data.sources import open_images, tell_damaged
    from us3l.evaluation import EvaluationSettings, Job
    from us3l.slimmable import Slimmable

    told, chosen = progress_of(progress), built(EvaluationSettings, settings, "evaluate")
    kept = None if isinstance(run, Slimmable) else run_of(run)
    net = run if isinstance(run, Slimmable) else run_of(run).network
    if data is None:
        if kept is None or not kept.started:
            raise UserError("say which labelled images to use (`data`)")
        config = config_of(kept)
        data, train_images = config.source, train_images or config.recipe.images
    where: dict[str, Any] = {"root": data_root, "stream": stream, "memory": int(memory_gib * 2**30), "progress": told}
    side = Preprocessing.of(net).resize
    train = open_images(data, "train" if test_data is None else "all", side, limit=train_images, **where)
    if test_data is None:
        test = open_images(data, "test", side, limit=test_images, **where)
    else:
        test = open_images(test_data, "all", side, limit=test_images, **where)
    job = Job(net, train, test, chosen, name_of(data))
    if kept:
        job.check(kept, name, overwrite)
    evaluation = job.run(told)
    tell_damaged(told, name_of(data), evaluation.damaged)
    return job.keep(kept, evaluation, name, overwrite) if kept else job.recorded(evaluation)


def detect(
    run: AnyRun,
    data: str | Path,
    width: float,
    *,
    data_root: str | Path | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | Told | None = None,
    **settings: Any,
) -> DetectionRecord:
    """Train Faster or Mask R-CNN on the network of one width, and test it on images with boxes.

    Args:
        run: a run, or the path of its folder.
        data: "voc", "coco", or a folder in the layout of either.
        width: of the sub-network.
        data_root: where voc and coco lie (default: the environment's US3L_DATA, else ./data).
        out: folder for the results (default: detect/ in the run's folder).
        resume: go on with a training that was stopped; the settings must be the same.
        overwrite: replace earlier results of this data and width.
        progress: "silent" (the default), "lines", "live", or an object of your own.
        settings: those of `us3l detect`, such as `steps=500`, `batch=4`, `masks="no"` or `device="cuda"`.

    Returns:
        The record that was kept; `rows` has a dictionary per class, that of all classes first.
    """
    from us3l.evaluation.detection.objects import detect_objects
    from us3l.evaluation.detection.settings import DetectionSettings

    chosen, told = with_settings(DetectionSettings(), settings), progress_of(progress)
    where: dict[str, Any] = {"data_root": data_root, "out": out, "resume": resume, "overwrite": overwrite}
    return detect_objects(run_of(run), data, width, chosen, **where, progress=told).record


def profile(
    run: AnyRun | Slimmable,
    *,
    widths: Literal["all"] | Sequence[float] | float | None = None,
    backends: Sequence[Backend] | Backend = "torch",
    batch_size: Sequence[int] | int = 1,
    progress: Progress | Told | None = None,
    **settings: Any,
) -> Profiled:
    """What each width costs, and how fast it is on this device.

    Args:
        run: a run, the path of its folder, or a network; of a network nothing is kept.
        widths: those to time (default: the paper's nine, and those that were evaluated).
        backends: what runs the networks: "torch", "onnx", "openvino", or several of them.
        batch_size: one or several to time.
        progress: "silent" (the default), "lines", "live", or an object of your own.
        settings: those of `us3l.deploy.profile_run`, such as `threads=4` or `device_profile="phone.csv"`.

    Returns:
        The profile; `rows` has a dictionary per width, backend and batch size.
    """
    from us3l.deploy.profiling import profile_run

    check_names(profile_run, settings)
    if table := settings.get("device_profile"):
        settings["device_profile"] = Path(table)
    with borrowed(run) as place:
        return profile_run(
            place,
            widths if isinstance(widths, str | None) else several(widths),
            several(backends),
            several(batch_size),
            progress=progress_of(progress),
            **settings,
        )


def pick(run: AnyRun | Slimmable, **settings: Any) -> Picked:
    """The best width within all budgets given.

    Args:
        run: a run, the path of its folder, or a network, which has no latencies.
        settings: budgets (`latency_ms`, `macs`, `params`, `size_mb`, `memory_mb`) and what else `us3l pick` takes, such
            as `accuracy_at_least=40`.

    Returns:
        The choice: its `width`, and whether it `fits`; if nothing does, it is the nearest.
    """
    from us3l.deploy.picking import pick_width

    check_names(pick_width, settings)
    with borrowed(run) as place:
        return pick_width(place, **settings)


def export(
    run: AnyRun | Slimmable,
    width: Sequence[float] | float,
    format: Sequence[Format] | Format = "torch",
    *,
    out: str | Path | None = None,
    progress: Progress | Told | None = None,
    **settings: Any,
) -> Exported:
    """Write plain networks of some widths as files, each checked against the network it came from.

    Args:
        run: a run, the path of its folder, or a network, for which `out` is needed.
        width: one or several.
        format: "torch", "safetensors", "onnx", "openvino" or "executorch", or several of them.
        out: folder for the files (default: export/ in the run's folder); an earlier bundle there is added to.
        progress: "silent" (the default), "lines", "live", or an object of your own.
        settings: those of `us3l export`, such as `int8=True`, `head="probe"` or `data="photos/"`.

    Returns:
        The networks that were written; `files` are those to open.
    """
    from us3l.deploy.exporting import export_run
    from us3l.slimmable import Slimmable

    check_names(export_run, settings)
    if isinstance(run, Slimmable) and out is None:
        raise UserError("say where the files of a network should go: `out='FOLDER'`")
    folder = None if out is None else Path(out)
    with borrowed(run) as place:
        told = progress_of(progress)
        return export_run(place, several(width), several(format), out=folder, progress=told, **settings)


def report(
    *runs: AnyRun, out: str | Path | None = None, progress: Progress | Told | None = None, **settings: Any
) -> Path:
    """Write one page about a run, or several runs side by side: an HTML file that opens anywhere.

    Args:
        runs: finished or not.
        out: the page (default, for one run: report.html in its folder, which is replaced).
        progress: "silent" (the default), "lines", "live", or an object of your own.
        settings: those of `us3l report`, such as `images=False` or `overwrite=True`.

    Returns:
        Where the page is.
    """
    from us3l.reporting.build import build_report

    check_names(build_report, settings)
    return build_report([run_of(run) for run in runs], out, progress=progress_of(progress), **settings)


def compare(*runs: AnyRun, data: str | None = None, metric: str | None = None) -> Comparison:
    """Accuracy of several evaluated runs at each width; runs that differ only in their seed are one column.

    Args:
        runs: those to compare; the others are compared with the first.
        data: the evaluation, by its name (default: the one that all runs have).
        metric: "linear", "finetuned" or "knn" (default: the first of these that all runs have).

    Returns:
        The comparison; `rows` has a dictionary per width.
    """
    from us3l.evaluation.comparing import compare_runs

    return compare_runs(runs, data, metric)


def reproduce(
    table: str,
    *,
    scale: Literal["mini", "paper"] = "mini",
    rows: Sequence[int] | int = (),
    seeds: int = 1,
    out: str | Path = "runs/reproduce",
    data: Mapping[str, str] | None = None,
    table_only: bool = False,
    progress: Progress | Told | None = None,
) -> Reproduction:
    """Fill a table of the paper: train and evaluate the runs that it lacks, and write both results.

    Args:
        table: its name, see `us3l reproduce --help`.
        scale: small runs for CPUs ("mini"), or all as the paper has it ("paper").
        rows: those to train, by their numbers from 1 (default: all).
        seeds: train each row with this many seeds.
        out: folder of all runs and tables.
        data: where data sets lie, by their names (default: where `us3l download` puts them).
        table_only: train nothing; write the table from what is there.
        progress: "silent" (the default), "lines", "live", or an object of your own.

    Returns:
        The table; `rows` has a dictionary per figure, `failures` the runs that failed.
    """
    from us3l.paper.plans import Worker, plan_table
    from us3l.reporting.reproduction import write_reproduction

    plan = plan_table(table, scale, several(rows), seeds, out, data)
    worker = Worker(plan, train, evaluate, detect, progress_of(progress))
    return write_reproduction(plan, {} if table_only else worker.work())


# Helpers


def run_of(run: AnyRun) -> Run:
    return run if isinstance(run, Run) else Run(run)


def built(kind: type[T], settings: dict[str, Any], verb: str) -> T:
    """A dataclass of settings from values by name; an unknown name is a `UserError`."""
    from us3l.run.config import build

    if isinstance(settings.get("widths"), int | float):
        settings = settings | {"widths": (settings["widths"],)}
    return build(kind, settings, verb)


def name_of(data: Any) -> str:
    """What config.yaml calls the images: their path or name, or what a Python program gave instead."""
    if data is None:
        return ""
    if isinstance(data, str | Path):
        return str(data)
    count = f"{len(data):,} images" if hasattr(data, "__len__") else "images"
    return f"<{type(data).__name__} of {count}>"


@contextmanager
def borrowed(run: AnyRun | Slimmable) -> Iterator[Run]:
    """A run; for a network in memory, a folder that is gone afterwards."""
    from us3l.slimmable import Slimmable

    if not isinstance(run, Slimmable):
        yield run_of(run)
        return
    with TemporaryDirectory() as folder:
        place = Run(Path(folder) / "network", run.family)
        run.save(place.folder)
        yield place


def check_names(function: Callable[..., Any], settings: dict[str, Any]) -> None:
    """That a function has settings of these names."""
    known = [name for name in signature(function).parameters if name not in ("run", "runs", "progress", "exported")]
    check_known(settings, known)


def several(values: Sequence[T] | T) -> tuple[T, ...]:
    """One value or several, as several."""
    return tuple(values) if isinstance(values, Sequence) and not isinstance(values, str) else (values,)
