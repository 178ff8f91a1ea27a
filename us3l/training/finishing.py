"""The end of a run: batch-norm statistics for its widths, and the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from us3l.calibration import calibrate
from us3l.errors import UserError
from us3l.files import checksum
from us3l.run import Run
from us3l.seeds import seeded
from us3l.slimmable import Slimmable
from us3l.stopping import Interrupted
from us3l.training.display import Display
from us3l.training.teacher import save_projector
from us3l.training.trainer import Trainer
from us3l.training.trouble import diverged, going_on


def finish(trainer: Trainer, run: Run, display: Display, asked_to_stop: Callable[[], bool] = lambda: False) -> None:
    """Calibrate the network and save the model, unless it is of no use.

    Args:
        trainer: All of whose steps are made.
        run: Where the model goes.
        display: Tells how far it is.
        asked_to_stop: Looked at between batches.

    Raises:
        Interrupted: It was asked to stop. A resumed run collects the statistics anew.
        UserError: The network is not finite.
    """
    recipe, net = trainer.recipe, trainer.learner.net
    sample = trainer.sample(recipe.calibration, seeded(recipe.seed))
    images = trainer.preprocessing.apply(sample.images)
    widths = calibrated_widths(net, trainer.machine.calibrated_widths)
    if not all(map(net.calibrated, widths)):
        what = f"collecting batch-norm statistics for {len(widths)} of {len(net.widths)} distinct widths"
        display.say(what)
        with display.progress.counting(what, len(images) * len(widths)) as counting:

            def count(images: int) -> None:
                counting.more(images)
                if asked_to_stop():
                    saved = f"the trained state is saved{going_on(run)}"
                    raise Interrupted(f"stopped while collecting batch-norm statistics; {saved}")

            calibrate(net, images, widths, progress=count)
    features = embed(net.at(1.0), images)
    if not finite(net, features):
        raise UserError(diverged(trainer.step, recipe, run))
    training: dict[str, Any] = {"steps": trainer.steps, "images": trainer.images.total, "seed": recipe.seed}
    if isinstance(trainer.learner.projector, nn.Sequential):  # before the model, which makes the run a finished one
        save_projector(run.projector, trainer.learner.projector, features)
        training["projector"] = checksum(run.projector)
    net.metadata = {"preprocessing": trainer.preprocessing.to_plain(), "training": training}
    net.save(run.model, overwrite=True)
    display.say(f"the model is in {run.model}")


def calibrated_widths(net: Slimmable, chosen: tuple[float, ...] | None) -> list[float]:
    """The widths to calibrate at the end of a run, ascending: the chosen ones and the full network, or all."""
    if chosen is None:
        return net.widths
    return sorted({net.canonical(width) for width in (*chosen, 1.0)})


def finite(net: Slimmable, features: Tensor) -> bool:
    """Whether a network can be of any use: its weights, its statistics and the features that it gives are numbers."""
    statistics = [tensor for kept in net.statistics.values() for tensor in kept.statistics.values()]
    return all(bool(tensor.isfinite().all()) for tensor in (features, *net.weights().values(), *statistics))


@torch.no_grad()
def embed(network: nn.Module, images: Tensor) -> Tensor:
    return torch.cat([network(part) for part in images.split(250)])
