"""A whole run: steps, records, checkpoints, gauges."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor

from us3l import __version__
from us3l.data.contents import Contents
from us3l.data.images import Images
from us3l.distributed.launching import any_of, first_alone, is_first, make_fabric, processes
from us3l.families.family import as_family
from us3l.objective.sampling import lower_bound
from us3l.objective.spec import Objective
from us3l.objective.spec import warning as guideline_warning
from us3l.run import Run
from us3l.run.checkpoints import has_checkpoint, load_checkpoint, save_checkpoint
from us3l.run.config import write_config
from us3l.run.training_log import (
    Gauges,
    Skipped,
    Speed,
    Start,
    StepRecord,
    append_speed,
    append_start,
    cut_records,
)
from us3l.slimmable import Slimmable
from us3l.system.errors import UserError
from us3l.system.progress import SILENT, Progress
from us3l.system.stopping import Interrupted, stop_requests
from us3l.training.display import Display, losses_line
from us3l.training.failures import ImageFaults, explained, going_on, last_good, not_finite
from us3l.training.finish import finish
from us3l.training.initial import Init, Pretrained
from us3l.training.loggers import Recorder, check_loggers
from us3l.training.monitor import COLLAPSED, Monitor
from us3l.training.recipes import SOURCE
from us3l.training.run_config import RunConfig, config_of
from us3l.training.run_networks import new_networks
from us3l.training.trainer import StepResult, Trainer
from us3l.width import Width

FETCH_EVERY = 10  # steps between looks at the losses, each of which waits for the device
MONITORINGS = 10  # looks at the gauges in a run


def train(
    config: RunConfig,
    run: Run,
    data: Callable[[], Images],
    resume: bool = False,
    progress: Progress = SILENT,
    source: Pretrained | None = None,
    teacher: Init | None = None,
) -> Slimmable:
    """Train a slimmable network once on images without labels; its model lies in the run's folder at the end.

    Args:
        config: All settings.
        run: Where everything goes; it knows the family of a network of the user's own.
        data: Opens the images, in every process.
        resume: Continue the run, if it was started.
        progress: Hears how it goes.
        source: The pretrained network that a run begins with, if any.
        teacher: The one that it imitates, if the settings cannot name it.

    Returns:
        The trained network.
    """
    config = config.resolved()
    check_settings(config)
    machine = config.machine
    fabric = make_fabric(machine.accelerator, machine.devices, machine.precision)
    if not (resume and run.started):
        run.refuse_if_used()
    with run.held() if is_first(fabric) else nullcontext(), explained(config, run):
        fabric.launch()
        config = fabric.broadcast(config)  # `recipe="auto"` may have found less free memory in another process
        user_family = run.family and as_family(run.family)
        networks = new_networks(config.recipe, user_family, source, teacher)  # whether they fit, before images are read
        trainer = Trainer(config.recipe, data(), fabric, machine, networks)
        monitor = Monitor(trainer) if fabric.is_global_zero else None
        progress = progress if monitor else SILENT
        costs = [step_cost(trainer.widths(step)) for step in range(trainer.steps)]
        with begun(config, run, trainer, monitor, fabric.broadcast(resume and run.started), progress):
            if monitor:
                append_start(run, start_of(trainer))
            display = Display(progress, run.log if monitor else None, costs, trainer.step)
            loggers = machine.loggers if monitor else ()
            with stop_requests(display.say) as asked_to_stop, Recorder(run, loggers, display.say) as recorder:
                with display:
                    display.say(describe(config, trainer))
                    if warning := guideline_warning(config.recipe.objective):
                        display.say(warning, style="bold yellow")
                    faults = run_steps(config, trainer, monitor, run, recorder, display, asked_to_stop)
                with first_alone(fabric) as alone:
                    if alone:
                        finish(trainer, run, display, asked_to_stop, len(faults.lines), len(faults.changed))
                        recorder.show_neighbours(
                            trainer.learner.net, trainer.sample, trainer.preprocessing, trainer.step
                        )
    return trainer.learner.net


@contextmanager
def begun(
    config: RunConfig, run: Run, trainer: Trainer, monitor: Monitor | None, resumed: bool, progress: Progress
) -> Iterator[None]:
    """Start a run, or resume it. One that fails in its first step leaves nothing behind that would hinder the next."""
    if resumed:
        go_on(config, trainer, monitor, run, progress)
        yield
        return
    imported = config.recipe.init or config.recipe.teacher
    state = trainer.state() if imported else None
    if monitor:
        run.start(config)
        if state is not None:  # so that the weights it started from are never needed again
            save_checkpoint(run.checkpoints, state)
    try:
        yield
    except BaseException:
        if monitor and trainer.step == 0:
            run.abandon()
        raise


def go_on(config: RunConfig, trainer: Trainer, monitor: Monitor | None, run: Run, progress: Progress) -> None:
    """Bring back the last state of a run; one that was stopped before its first checkpoint starts over."""
    if has_checkpoint(run.checkpoints):
        state, problems = load_checkpoint(run.checkpoints)
        for problem in problems:
            progress.say(f"{problem}; going on from the one before it", style="yellow")
        trainer.load_state(state)
        check_images(trainer, run, progress)
        if monitor:
            monitor.load_state(state.get("monitor", {}))
    if trainer.step != trainer.fabric.broadcast(trainer.step):
        raise UserError(f"{run.folder} is not the same folder for all processes: put it on a disk that they share")
    if monitor:
        for leftover in run.checkpoints.glob(".*.tmp.*"):  # of a run that was killed while it wrote
            leftover.unlink(missing_ok=True)
        cut_records(run, trainer.step)
        if config != config_of(run):
            write_config(run.config_file, config)


def check_images(trainer: Trainer, run: Run, progress: Progress) -> None:
    """Raise if images that a run has looked at are gone, or are not what they were."""
    if not run.images.exists():  # of an earlier version
        return
    images = trainer.images
    with progress.counting(f"comparing {images.name} with what this run has seen") as counting:
        changed = images.changed_since(Contents.load(run.images), counting.so_far)
    if changed:
        raise UserError(
            f"{len(changed):,} of {images.total:,} images have changed since this run began, such as {changed[0]}: "
            "bring back those it was started with, or start a new run"
        )


def run_steps(
    config: RunConfig,
    trainer: Trainer,
    monitor: Monitor | None,
    run: Run,
    recorder: Recorder,
    display: Display,
    asked_to_stop: Callable[[], bool],
) -> ImageFaults:
    """Make all steps that are left; the first process, which has the monitor, does the writing.

    Returns:
        The images of the run that could not be read, or changed meanwhile.
    """
    epochs = math.ceil(trainer.steps / trainer.per_epoch)
    waiting: list[StepResult] = []
    faults = ImageFaults(config, run, trainer, display.say)
    speed = Speed()
    started = time.perf_counter()
    while trainer.step < trainer.steps:
        done = trainer.train_step()
        waiting.append(done)
        epoch_ends = trainer.step % trainer.per_epoch == 0 or trainer.step == trainer.steps
        epoch = math.ceil(trainer.step / trainer.per_epoch)
        fetching = epoch_ends or trainer.step % FETCH_EVERY == 0
        # Several can only stop together, and ask each other when they wait anyway.
        listening = fetching or trainer.fabric.world_size == 1
        stopping = listening and any_of(trainer.fabric, asked_to_stop())
        shown = ""
        if fetching or stopping:
            faults.add(waiting)
            records = fetch(config, trainer, run, waiting)
            if monitor:
                recorder.add(records)
            shown = show(records[-1], config.recipe.objective)
            waiting.clear()
        now = time.perf_counter()
        images = trainer.batch * trainer.fabric.world_size
        display.step(done.step, now - started, images, f"{epoch}/{epochs}", shown, done.waited)
        speed = speed.after(done.step, epoch, images, now - started, done.waited)
        if epoch_ends and monitor:
            append_speed(run, speed)
            speed = Speed()
        if epoch_ends and (epoch % math.ceil(epochs / MONITORINGS) == 0 or epoch == epochs):
            collapsed = look(trainer, monitor, recorder, display, epoch) if monitor else []
            if config.machine.stop_on_collapse and trainer.fabric.broadcast(collapsed):
                raise UserError(f"stopped after step {trainer.step}, as the embeddings collapsed; {last_good(run)}")
        # Last, so that a checkpoint is never ahead of the metrics.
        due = epoch_ends and (epoch % config.machine.checkpoint_every == 0 or epoch == epochs)
        if due or stopping:
            state, contents = trainer.state(), trainer.contents()
            if monitor:
                contents.save(run.images)
                save_checkpoint(run.checkpoints, state | {"monitor": monitor.state()})
        if stopping:
            raise Interrupted(
                f"stopped after step {trainer.step} of {trainer.steps}; the state is saved{going_on(run)}"
            )
        started = time.perf_counter()
    faults.tell_if_more()
    for line in faults.lines:
        display.record(f"skipped {line}")
    return faults


def fetch(config: RunConfig, trainer: Trainer, run: Run, waiting: list[StepResult]) -> list[StepRecord | Skipped]:
    """Return the records of the steps that are waiting."""
    losses = trainer.fabric.all_reduce(torch.cat([torch.stack(done.losses) for done in waiting]), reduce_op="mean")
    assert isinstance(losses, Tensor)
    values = iter(losses.tolist())
    records: list[StepRecord | Skipped] = []
    flags = torch.stack([torch.stack([done.sound, done.left_out]) for done in waiting]).tolist()
    for done, (sound, left_out) in zip(waiting, flags, strict=True):
        of_widths = [next(values) for _ in done.losses]
        about = (done.step, done.step // trainer.per_epoch + 1, trainer.learning_rate(done.step), done.widths)
        if not left_out and not (sound and all(map(math.isfinite, of_widths))):
            raise UserError(not_finite(done.step, of_widths, config, run))
        records.append(Skipped(*about) if left_out else StepRecord(*about, of_widths))
    return records


def show(record: StepRecord | Skipped, objective: Objective) -> str:
    if isinstance(record, Skipped):
        return "left out: its gradients are not finite"
    return losses_line(objective, record.widths, record.losses)


def look(trainer: Trainer, monitor: Monitor, recorder: Recorder, display: Display, epoch: int) -> list[Width]:
    """Show and record the gauges; the widths that have collapsed."""
    # Not compiled: batches are few, and of other sizes than in training.
    with torch.compiler.set_stance("force_eager") if trainer.machine.compile else nullcontext():
        gauges = monitor.measure()
    display.show(gauges)
    named = {f"{width:g}": values for width, values in gauges.items()}
    recorder.add([Gauges(trainer.step - 1, epoch, named)])
    net, objective = trainer.learner.net, trainer.recipe.objective
    # Narrower ones are not expected to embed well yet.
    trained_from = lower_bound(objective, net.min_width, trainer.step - 1, trainer.steps)
    collapsed = [width for width, values in gauges.items() if width >= trained_from and values["spread"] < COLLAPSED]
    if collapsed:
        display.say(
            f"warning: collapse at {', '.join(f'{width:g}x' for width in collapsed)}: all images get nearly the same "
            "embedding, or one that is not finite. Lower `lr`, or see the guidelines on the choice of losses",
            style="bold red",
        )
    return collapsed


def check_settings(config: RunConfig) -> None:
    """Check what can be before anything is read: teachers where they are used, a batch that fits the devices."""
    check_loggers(config.machine.loggers)
    recipe = config.recipe
    objective, teacher = recipe.objective, recipe.teacher
    if teacher is None and objective.needs_pretrained_teacher:
        losses = ", ".join(objective.teacher_shares or [objective.base_loss])
        raise UserError(f"{losses}: a pretrained network is to be imitated, say which: `teacher=WHAT`, or `init=WHAT`")
    if teacher is not None and not objective.needs_pretrained_teacher:
        raise UserError(
            f"base_loss={objective.base_loss!r} has no use for `teacher={teacher!r}`: leave it out, or choose a method "
            "that imitates it, such as `method='imitate'` or 'seed'"
        )
    if recipe.teacher_size is not None and teacher is None:
        raise UserError(
            f"teacher_size={recipe.teacher_size} is the size at which a pretrained teacher sees images, and this run "
            "has none: leave it out, or say which, `teacher=WHAT`"
        )
    if teacher == SOURCE and recipe.init is None:
        raise UserError("`teacher='init'` is the network that a run begins with: say which, `init=WHAT`")
    count = math.prod(processes(config.machine.devices))
    if recipe.batch_size // count < 2:
        raise UserError(f"a batch of {recipe.batch_size} is too small for {count} devices")


def step_cost(widths: list[Width]) -> float:
    """Return the relative cost of a step: forward and backward of each width's network, and the teacher's forward."""
    return 1 + 3 * sum(float(width) ** 2 for width in widths)


def start_of(trainer: Trainer) -> Start:
    fabric = trainer.fabric
    return Start(
        time=time.strftime("%Y-%m-%d %H:%M:%S"),
        step=trainer.step,
        steps=trainer.steps,
        images=trainer.images.total,
        batch=trainer.batch * fabric.world_size,
        devices=fabric.world_size,
        device=fabric.device.type,
        us3l=__version__,
        torch=torch.__version__,
    )


def describe(config: RunConfig, trainer: Trainer) -> str:
    recipe = config.recipe
    count = sum(p.numel() for p in trainer.learner.net.full.parameters())
    precision = "" if config.machine.precision == "32-true" else f" in {config.machine.precision}"
    return (
        f"{recipe.network.backbone} (base {recipe.network.base}, {count / 1e6:.2f} M parameters) on {config.data}: "
        f"{trainer.images.total} images, {trainer.steps} steps of {trainer.batch * trainer.fabric.world_size}, "
        f"{trainer.fabric.world_size} x {trainer.fabric.device.type}{precision}"
        f"{teacher_phrase(recipe.objective, trainer.steps)}"
    )


def teacher_phrase(objective: Objective, steps: int) -> str:
    """Say with which momentum the teacher follows, if there is one; at first, where it rises."""
    if not objective.has_momentum_teacher:
        return ""
    rising = ", rising to 1" if objective.teacher_schedule == "cosine" else ""
    return f"; teacher momentum {1 - objective.teacher_rate(0, steps):.4g}{rising}"
