"""The end of a run: batch-norm statistics for its widths, and its model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from us3l.calibration import calibrate
from us3l.objective.heads import save_projector
from us3l.run import Run
from us3l.run.linear_maps import ElasticClassifier, write_classifier
from us3l.slimmable import Slimmable
from us3l.system.errors import UserError
from us3l.system.files import checksum
from us3l.system.seeds import seeded
from us3l.system.stopping import Interrupted
from us3l.training.display import Display
from us3l.training.failures import diverged, going_on
from us3l.training.trainer import Trainer
from us3l.width import Width


def finish(
    trainer: Trainer,
    run: Run,
    display: Display,
    asked_to_stop: Callable[[], bool] = lambda: False,
    damaged: int = 0,
    changed: int = 0,
) -> None:
    """Calibrate the network and save the model of a run, with its projector or classifier.

    Args:
        trainer: It has made all its steps.
        run: Where the model goes.
        display: Tells how far it is.
        asked_to_stop: Looked at between batches.
        damaged: How many images could not be read, which the model's record says.
        changed: How many images became others while they were trained on, likewise.

    Raises:
        Interrupted: It was asked to stop. A resumed run collects the statistics again.
        UserError: The network is not finite.
    """
    recipe, net, projector = trainer.recipe, trainer.learner.net, trainer.learner.projector
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
    training |= {name: count for name, count in {"damaged": damaged, "changed": changed}.items() if count}
    if isinstance(projector, nn.Sequential):  # before the model, which makes the run a finished one
        save_projector(run.projector, projector, features)
        training["projector"] = checksum(run.projector)
    if isinstance(projector, nn.Linear):  # of a method that learns from labels
        labels = trainer.images.classes or [str(number) for number in range(projector.out_features)]
        head = (projector.weight.detach(), projector.bias.detach())
        write_classifier(run.classifier, ElasticClassifier(*head, labels, trainer.images.name))
        training["classifier"] = checksum(run.classifier)
    net.metadata = {"preprocessing": trainer.preprocessing.to_plain(), "training": training}
    net.save(run.model, overwrite=True)
    display.say(f"the model is in {run.model}")


def calibrated_widths(net: Slimmable, chosen: tuple[float, ...] | None) -> list[Width]:
    """Return the widths to calibrate at the end of a run, ascending: the chosen ones and the full network, or all."""
    if chosen is None:
        return [*net.widths]
    return sorted({net.canonical(width) for width in (*chosen, 1.0)})


def finite(net: Slimmable, features: Tensor) -> bool:
    """Return whether a network can be of any use: its weights, statistics and features are numbers."""
    statistics = [tensor for kept in net.calibrations for tensor in kept.statistics.values()]
    return all(bool(tensor.isfinite().all()) for tensor in (features, *net.weights().values(), *statistics))


@torch.no_grad()
def embed(network: nn.Module, images: Tensor) -> Tensor:
    return torch.cat([network(part) for part in images.split(250)])
