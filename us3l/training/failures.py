"""When a run goes wrong, or images cannot be read: what happened, what is left, what to do."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError

from us3l.run import Run
from us3l.run.checkpoints import load_checkpoint
from us3l.system.errors import UserError
from us3l.system.files import read_bytes, replacing
from us3l.training.loggers import Tell
from us3l.training.recipes import Recipe
from us3l.training.run_config import RunConfig
from us3l.training.trainer import StepResult, Trainer

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def explained(config: RunConfig, run: Run) -> Iterator[None]:
    """Turn what the system refuses to a run into an error that says what to do."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if out_of_memory(error):
            raise UserError(short_of_memory(config, run)) from None
        if "gloo" in str(error) or isinstance(error, torch.distributed.DistError):
            raise UserError(f"another process of the run has ended: see its error message; {last_good(run)}") from None
        if config.machine.compile and isinstance(error, torch._dynamo.exc.TorchDynamoException):
            reason = " ".join(str(error).splitlines()[:2])  # its words and those of the compiler
            raise UserError(f"cannot compile the network: {reason}; leave out `compile`") from None
        raise
    except (OSError, SafetensorError) as error:
        if getattr(error, "errno", None) in FULL or any(f"os error {number}" in str(error) for number in FULL):
            why = error.strerror if isinstance(error, OSError) else "no space left"
            raise UserError(
                f"cannot write to {run.folder}: {why}; {last_good(run)}. Make room, then go on with `resume=True`"
            ) from None
        raise


def out_of_memory(error: Exception) -> bool:
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(
        text in str(error) for text in ("can't allocate memory", "out of memory")
    )


def short_of_memory(config: RunConfig, run: Run) -> str:
    recipe, machine = config.recipe, config.machine
    lower = "" if machine.precision != "32-true" else ", `precision='bf16-mixed'`"
    again = "Continue with `resume=True` and" if run.started else "Start it again with"
    stream = "" if machine.stream else ", or with `stream=True`, so that the images are not kept on the device"
    return (
        f"out of memory with batches of {recipe.batch_size} images of {recipe.views.size} pixels; {last_good(run)}. "
        f"{again} `accumulate={2 * machine.accumulate}`{lower}, or start a new run with a lower `batch_size`, `size`, "
        f"`base` or `hidden`{stream}"
    )


def not_finite(step: int, losses: list[float], config: RunConfig, run: Run) -> str:
    recipe, machine = config.recipe, config.machine
    causes = [f"a learning rate that is too high (`lr={recipe.optimiser.lr:g}`)"]
    if machine.precision != "32-true":
        causes.append(f"too short numbers (`precision={machine.precision!r}`)")
    if recipe.objective.temperature < 0.1:
        causes.append(f"a very low `temperature` ({recipe.objective.temperature:g})")
    return (
        f"the loss {losses} or its gradients are not finite at step {step}; {last_good(run)}. Likely causes: "
        f"{', '.join(causes)}. To leave out a few such steps: `resume=True` with "
        f"`skip_bad_steps={machine.skip_bad_steps + 5}`"
    )


def diverged(step: int, recipe: Recipe, run: Run) -> str:
    return (
        f"after step {step} the network's weights or features are not finite, so no model is saved; its checkpoints "
        f"stay in {run.checkpoints}. The learning rate is too high (`lr={recipe.optimiser.lr:g}`): start a new run "
        "with a lower one"
    )


def going_on(run: Run) -> str:
    return f". Continue with: `us3l.pretrain(out={str(run.folder)!r}, resume=True)`"


def last_good(run: Run) -> str:
    try:
        step = load_checkpoint(run.checkpoints)[0]["step"]
    except UserError:
        return "there is no checkpoint yet"
    return f"the last good checkpoint, after step {step}, is in {run.checkpoints}"


def note_damaged(path: Path, damaged: Iterable[str]) -> list[str]:
    """Add images to a list of damaged ones, a line each with the reason; returns all that are in it now."""
    listed = read_bytes(path).decode(errors="surrogateescape").splitlines() if path.exists() else []
    everything = list(dict.fromkeys([*listed, *(" ".join(line.split()) for line in damaged)]))
    if len(everything) > len(listed):
        with replacing(path) as temporary:
            temporary.write_bytes("".join(f"{line}\n" for line in everything).encode(errors="surrogateescape"))
    return everything


def check_damaged(name: str, damaged: Sequence[str], limit: int) -> None:
    """Raise a `UserError` if more images than allowed cannot be read."""
    if len(damaged) > limit:
        raise UserError(
            f"{name}: {len(damaged)} images cannot be read, such as {damaged[-1]}; repair or remove them, or allow "
            f"more than {limit} (`max_bad_images`)"
        )


class ImageFaults:
    """The images that could not be read so far: listed in the run's folder, and said when there are more.

    So are those that were overwritten since they were read for the first time.

    Args:
        config: How many are allowed.
        run: Whose folder keeps the list.
        trainer: Whose images they are; those that were damaged when it began were said then.
        tell: Hears of others.
    """

    def __init__(self, config: RunConfig, run: Run, trainer: Trainer, tell: Tell) -> None:
        self.run, self.trainer, self.tell = run, trainer, tell
        self.limit = config.machine.max_bad_images
        self.before = list(trainer.images.skipped)
        self.lines = self.before
        self.changed: list[str] = []
        self.said = len(self.before)

    def add(self, steps: Sequence[StepResult]) -> None:
        """Note the images that any process met in these steps; all processes must ask together.

        Raises:
            UserError: There are too many, or a process has nothing left to read.
        """
        trainer = self.trainer
        mine = [*self.before, *(line for step in steps for line in step.damaged)]
        changed = [line for step in steps for line in step.changed]
        met = [(mine, changed, steps[-1].failure)]
        if trainer.peers.count > 1:
            met *= trainer.peers.count
            torch.distributed.all_gather_object(met, (mine, changed, steps[-1].failure))
        lines = list(dict.fromkeys(line for damaged, _, _ in met for line in damaged))
        if trainer.fabric.is_global_zero:
            lines = note_damaged(self.run.damaged, lines)
            self.note_changed([line for _, changed, _ in met for line in changed])
        for _, _, failure in met:
            if failure:
                raise UserError(failure)
        self.lines = trainer.fabric.broadcast(lines)
        check_damaged(trainer.images.name, self.lines, self.limit)
        if len(self.lines) >= 2 * self.said:  # not at every one
            self.tell_if_more()

    def note_changed(self, lines: Sequence[str]) -> None:
        """List images that were overwritten, and say how many there are now."""
        if lines:
            self.changed = note_damaged(self.run.changed, lines)
            self.tell(
                f"{self.trainer.images.name}: {len(self.changed):,} images were overwritten since they were first "
                f"read, such as {lines[-1]}; all are listed in {self.run.changed}",
                style="yellow",
            )

    def tell_if_more(self) -> None:
        """Say how many images could not be read, if there are more than were said before."""
        if len(self.lines) > self.said:
            self.said = len(self.lines)
            total, name = self.trainer.images.total, self.trainer.images.name
            self.tell(
                f"{name}: {self.said:,} of {total:,} images cannot be read and are replaced by others, such as "
                f"{self.lines[-1]}; all are listed in {self.run.damaged}",
                style="yellow",
            )
