"""A whole run: steps, records, checkpoints, gauges, and the model at the end."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies import DDPStrategy
from rich.console import Console
from torch import Tensor, nn

from us3l.calibration import calibrate
from us3l.data.sources import ImageFiles, ImageSet
from us3l.data.spec import MEAN, STD
from us3l.data.views import evaluation_view
from us3l.errors import UserError
from us3l.objective.sampling import lower_bound
from us3l.objective.spec import warning as guideline_warning
from us3l.progress import Counting
from us3l.slimmable import Slimmable
from us3l.stopping import stop_requests
from us3l.training.checkpoint import load_checkpoint, save_checkpoint
from us3l.training.display import Display
from us3l.training.monitor import COLLAPSED, Gauges, Monitor
from us3l.training.recipes import Recipe
from us3l.training.run import Machine, Run, RunConfig, append_records
from us3l.training.teacher import save_projector
from us3l.training.trainer import Trainer, seeded

FETCH_EVERY = 10  # steps between looks at the losses, each of which waits for the device
MONITORINGS = 10  # looks at the gauges in a run


class Interrupted(Exception):
    """The run was asked to stop, and is saved."""


def pretrain(
    config: RunConfig,
    run: Run,
    data: Callable[[], ImageSet | ImageFiles],
    resume: bool = False,
    console: Console | None = None,
) -> Slimmable:
    """Train a slimmable network once on images without labels; its model lies in the run's folder at the end."""
    console = console or Console()
    if config.recipe.batch_size // config.machine.devices < 2:
        raise UserError(f"a batch of {config.recipe.batch_size} is too small for {config.machine.devices} devices")
    check_teacher(config.recipe)
    fabric = make_fabric(config.machine)
    trainer = Trainer(config.recipe, data(), fabric)
    monitor = Monitor(trainer) if fabric.is_global_zero else None
    if fabric.is_global_zero and not resume:
        run.start(config)
    quiet = console if fabric.is_global_zero else Console(quiet=True)
    if resume:
        for leftover in run.checkpoints.glob(".*.tmp.*"):  # of a run that was killed while it wrote
            leftover.unlink(missing_ok=True)
        if any(run.checkpoints.glob("*.pt")):  # else it was stopped before its first checkpoint, and starts over
            state, problems = load_checkpoint(run.checkpoints)
            for problem in problems:
                quiet.print(f"{problem}; going on from the one before it", style="yellow", markup=False)
            trainer.load_state(state)
            if monitor:
                monitor.load_state(state.get("monitor", {}))
        if fabric.is_global_zero:
            run.cut_metrics(trainer.step)
    costs = [step_cost(trainer.widths(step)) for step in range(trainer.steps)]
    log = run.log if fabric.is_global_zero else None
    with Display(quiet, log, costs, trainer.step) as display, stop_requests() as asked_to_stop:
        display.say(describe(config, trainer))
        if warning := guideline_warning(config.recipe.objective):
            display.say(warning, style="bold yellow")
        train(trainer, monitor, run, display, asked_to_stop, config.machine.checkpoint_every)
        for name in trainer.images.damaged:
            display.record(f"skipped {name}")
    if fabric.is_global_zero:
        finish(trainer, run, display)
    fabric.barrier()
    return trainer.learner.net


def train(
    trainer: Trainer,
    monitor: Monitor | None,
    run: Run,
    display: Display,
    asked_to_stop: Callable[[], bool],
    checkpoint_every: int,
) -> None:
    """All steps that are left. The first process, which has the monitor, does the writing."""
    epochs = math.ceil(trainer.steps / trainer.per_epoch)
    waiting: list[tuple[int, list[float], list[Tensor]]] = []  # steps whose losses are still on the device
    started = time.perf_counter()
    while trainer.step < trainer.steps:
        step, widths = trainer.step, trainer.widths(trainer.step)
        waiting.append((step, widths, trainer.train_step()))
        epoch_ends = trainer.step % trainer.per_epoch == 0 or trainer.step == trainer.steps
        epoch = math.ceil(trainer.step / trainer.per_epoch)
        fetching = epoch_ends or trainer.step % FETCH_EVERY == 0
        stopping = all_agree_to_stop(trainer.fabric, asked_to_stop(), fetching)
        losses = ""
        if fetching or stopping:
            records = [record(trainer, *item) for item in waiting]
            losses = "loss  " + "  ".join(
                f"{w:g}x {value:.3f}" for w, value in zip(widths, records[-1]["losses"], strict=True)
            )
            check_finite(records, run)
            if monitor:
                append_records(run.metrics, records)
            waiting.clear()
        now = time.perf_counter()
        display.step(step, now - started, trainer.batch * trainer.fabric.world_size, f"{epoch}/{epochs}", losses)
        if monitor and epoch_ends and (epoch % math.ceil(epochs / MONITORINGS) == 0 or epoch == epochs):
            gauges = monitor.measure()
            display.show(gauges)
            append_records(run.metrics, [{"event": "monitor", "step": step, "epoch": epoch, "gauges": named(gauges)}])
            warn_of_collapse(gauges, trainer, display)
        # Last, so that a checkpoint is never ahead of the metrics.
        due = epoch_ends and (epoch % checkpoint_every == 0 or epoch == epochs)
        if monitor and (due or stopping):
            save_checkpoint(run.checkpoints, trainer.state() | {"monitor": monitor.state()})
        if stopping and trainer.step < trainer.steps:
            raise Interrupted(f"stopped after step {trainer.step} of {trainer.steps}; the state is saved")
        started = time.perf_counter()


def finish(trainer: Trainer, run: Run, display: Display) -> None:
    """Calibrate every width and save the model."""
    recipe, net = trainer.recipe, trainer.learner.net
    sample = trainer.images.sample(recipe.calibration, seeded(recipe.seed))
    images = evaluation_view(sample.images, recipe.views.size)
    if not net.calibrated(1.0):
        what = f"collecting batch-norm statistics for all {len(net.widths)} distinct widths"
        display.say(what)
        with Counting(display.console, what, len(images) * len(net.widths)) as counting:
            calibrate(net, images, progress=counting.more)
    net.metadata = {
        "preprocessing": {"size": recipe.views.size, "mean": list(MEAN), "std": list(STD)},
        "training": {"steps": trainer.steps, "images": len(trainer.images), "seed": recipe.seed},
    }
    net.save(run.model, overwrite=True)
    if isinstance(trainer.learner.projector, nn.Sequential):
        save_projector(run.folder, trainer.learner.projector, embed_views(net.at(1.0), images))
    display.say(f"the model is in {run.model}")


@torch.no_grad()
def embed_views(network: nn.Module, images: Tensor) -> Tensor:
    return torch.cat([network(part) for part in images.split(250)])


def check_teacher(recipe: Recipe) -> None:
    """A pretrained teacher is named where there is a use for it, and only there."""
    base_loss = recipe.objective.base_loss
    if recipe.objective.frozen_teacher and recipe.teacher is None:
        raise UserError(f"base_loss={base_loss!r} imitates a pretrained network: say which, --teacher RUN")
    if recipe.teacher is not None and not recipe.objective.frozen_teacher:
        raise UserError(f"base_loss={base_loss!r} has no use for --teacher {recipe.teacher}: leave it out, or use seed")


def make_fabric(machine: Machine) -> Fabric:
    warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")  # slower, not wrong
    # The distillation head gets no gradient while the full network trains alone.
    strategy = DDPStrategy(find_unused_parameters=True) if machine.devices > 1 else "auto"
    try:
        fabric = Fabric(
            accelerator=machine.accelerator, devices=machine.devices, precision=machine.precision, strategy=strategy
        )
    except (ValueError, RuntimeError) as error:  # Fabric's own messages name what this machine lacks
        raise UserError(f"cannot run on {machine.devices} x {machine.accelerator}: {error}") from None
    fabric.launch()
    return fabric


def all_agree_to_stop(fabric: Fabric, asked: bool, fetching: bool) -> bool:
    """Whether any process was asked to; several can only stop together, and ask each other when they wait anyway."""
    if fabric.world_size == 1:
        return asked
    return fetching and bool(fabric.all_reduce(torch.tensor(float(asked)), reduce_op="sum"))


def step_cost(widths: list[float]) -> float:
    """How dear a step is: forward and backward of each network, and the teacher's forward."""
    return 1 + 3 * sum(width**2 for width in widths)


def describe(config: RunConfig, trainer: Trainer) -> str:
    recipe = config.recipe
    count = sum(p.numel() for p in trainer.learner.net.full.parameters())
    return (
        f"{recipe.network.backbone} (base {recipe.network.base}, {count / 1e6:.2f} M parameters) on {config.data}: "
        f"{len(trainer.images)} images, {trainer.steps} steps of {trainer.batch * trainer.fabric.world_size}, "
        f"{config.machine.devices} x {trainer.fabric.device.type}"
    )


def record(trainer: Trainer, step: int, widths: list[float], losses: list[Tensor]) -> dict[str, Any]:
    """A line of metrics.jsonl. Nothing in it depends on time, so that a resumed run writes the same."""
    return {
        "event": "step",
        "step": step,
        "epoch": step // trainer.per_epoch + 1,
        "lr": trainer.learning_rate(step),
        "widths": widths,
        "losses": torch.stack(losses).tolist(),
    }


def check_finite(records: list[dict[str, Any]], run: Run) -> None:
    for item in records:
        if not all(map(math.isfinite, item["losses"])):
            raise UserError(
                f"the loss is not finite at step {item['step']}: {item['losses']}. The checkpoints in "
                f"{run.checkpoints} are from before it. A lower --lr or --precision 32-true often helps"
            )


def named(gauges: Gauges) -> dict[str, dict[str, float]]:
    return {f"{width:g}": values for width, values in gauges.items()}


def warn_of_collapse(gauges: Gauges, trainer: Trainer, display: Display) -> None:
    """Of widths that have been trained: narrower ones are not expected to embed well yet."""
    net, objective = trainer.learner.net, trainer.recipe.objective
    trained_from = lower_bound(objective, net.min_width, trainer.step - 1, trainer.steps)
    collapsed = [f"{w:g}x" for w, values in gauges.items() if w >= trained_from and values["spread"] < COLLAPSED]
    if collapsed:
        display.say(
            f"warning: collapse at {', '.join(collapsed)}: all images get nearly the same embedding. "
            "Lower --lr, or see the guidelines on the choice of losses",
            style="bold red",
        )
