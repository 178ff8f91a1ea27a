"""The end of a run: batch-norm statistics for its widths, and its model or models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from us3l.calibration import calibrate
from us3l.data.images import Images
from us3l.distributed.launching import make_fabric
from us3l.families.family import as_family
from us3l.objective.learner import Learner
from us3l.run import Run
from us3l.run.checkpoints import load_checkpoint
from us3l.run.elastic_classifier import ElasticClassifier, write_classifier
from us3l.run.folder import Product
from us3l.slimmable import Slimmable
from us3l.system.errors import UserError
from us3l.system.files import checksum
from us3l.system.progress import Progress
from us3l.system.seeds import seeded
from us3l.system.stopping import Interrupted
from us3l.training.display import Display
from us3l.training.failures import diverged, going_on
from us3l.training.recipes import Recipe
from us3l.training.run_config import RunConfig
from us3l.training.run_networks import new_networks
from us3l.training.teacher import save_projector
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
    """Calibrate and save what the run is to leave: the network's model, its teacher's, or both.

    Args:
        trainer: It has made all its steps.
        run: Where the models go.
        display: Tells how far it is.
        asked_to_stop: Looked at between batches.
        damaged: How many images could not be read, which the model's record says.
        changed: How many were overwritten meanwhile, which it says too.

    Raises:
        Interrupted: It was asked to stop. A resumed run collects the statistics again.
        UserError: A network is not finite.
    """
    product = trainer.recipe.objective.product
    faults = {"damaged": damaged, "changed": changed}
    promised: dict[str, Any] = {name: count for name, count in faults.items() if count}
    if product == "both":  # first, because the run's own model makes it a finished one
        save_model(trainer, "teacher", run.kept("teacher"), display, asked_to_stop)
        promised |= {"teacher": checksum(run.kept("teacher").model / "weights.safetensors")}
    save_model(trainer, "student" if product == "both" else product, run, display, asked_to_stop, promised)


def make_model(config: RunConfig, run: Run, product: Product, images: Images, progress: Progress) -> None:
    """Make the model of a finished run that it did not keep, from its last checkpoint.

    Args:
        config: The run's settings.
        run: Whose folder it goes into.
        product: Whose weights it is to have.
        images: Those that the run was trained on.
        progress: Told how far it is.
    """
    check_product(config.recipe, product)
    machine = replace(config.machine, devices=1, compile=False, sync_bn=False)
    with run.held():
        networks = new_networks(config.recipe, run.family and as_family(run.family))
        trainer = Trainer(config.recipe, images, make_fabric(machine.accelerator, 1, "32-true"), machine, networks)
        trainer.load_state(load_checkpoint(run.checkpoints)[0])
        if trainer.step < trainer.steps:
            raise UserError(f"{run.folder} is at step {trainer.step} of {trainer.steps}{going_on(run)}")
        save_model(trainer, product, run.kept(product), Display(progress, run.log, [], 0))


def save_model(
    trainer: Trainer,
    product: Product,
    place: Run,
    display: Display,
    asked_to_stop: Callable[[], bool] = lambda: False,
    promised: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Calibrate a network and save its model with its projector or classifier, unless it is of no use: see `finish`.

    Args:
        product: Whose weights it has.
        place: Where it goes.
        promised: What the run is to have beside the model, by name: a checksum of each.
    """
    recipe, run = trainer.recipe, place.origin
    net, projector = teacher_of(trainer.learner) if product == "teacher" else student_of(trainer.learner)
    sample = trainer.sample(recipe.calibration, seeded(recipe.seed))
    images = trainer.preprocessing.apply(sample.images)
    widths = calibrated_widths(net, trainer.machine.calibrated_widths)
    whose = " of the teacher" if product == "teacher" else ""
    if not all(map(net.calibrated, widths)):
        what = f"collecting batch-norm statistics{whose} for {len(widths)} of {len(net.widths)} distinct widths"
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
    training: dict[str, Any] = {"steps": trainer.steps, "images": trainer.images.total, "seed": recipe.seed, **promised}
    if product == "teacher":
        training["product"] = product
    if isinstance(projector, nn.Sequential):  # before the model, which makes the run a finished one
        save_projector(place.projector, projector, features)
        training["projector"] = checksum(place.projector)
    if isinstance(projector, nn.Linear):  # of a method that learns from labels
        labels = trainer.images.classes or [str(number) for number in range(projector.out_features)]
        head = (projector.weight.detach(), projector.bias.detach())
        write_classifier(place.classifier, ElasticClassifier(*head, labels, trainer.images.name))
        training["classifier"] = checksum(place.classifier)
    net.metadata = {"preprocessing": trainer.preprocessing.to_plain(), "training": training}
    net.save(place.model, overwrite=True)
    display.say(f"the model{whose} is in {place.model}")


def check_product(recipe: Recipe, product: str) -> None:
    """That a run has a teacher, and one whose slices are sub-networks, if its weights are asked for."""
    if product == "student":
        return
    objective = recipe.objective
    if not objective.has_momentum_teacher:
        raise UserError("this run has no momentum teacher (`momentum_base` or `momentum_sub`), and so no weights of it")
    if recipe.network.switchable:
        raise UserError("the teacher has the batch norms of the full network only: leave out `switchable` or `product`")


def student_of(learner: Learner) -> tuple[Slimmable, nn.Module]:
    """The trained network and its projector."""
    return learner.net, learner.projector


def teacher_of(learner: Learner) -> tuple[Slimmable, nn.Module]:
    """The momentum teacher and its projector. Its weights are an average of the network's, so their slices fit too."""
    assert isinstance(learner.teacher, nn.Sequential)
    full, projector = learner.teacher
    net = Slimmable(learner.net.family, learner.net.min_width)
    net.full = full
    return net, projector


def calibrated_widths(net: Slimmable, chosen: tuple[float, ...] | None) -> list[Width]:
    """The widths to calibrate at the end of a run, ascending: the chosen ones and the full network, or all."""
    if chosen is None:
        return [*net.widths]
    return sorted({net.canonical(width) for width in (*chosen, 1.0)})


def finite(net: Slimmable, features: Tensor) -> bool:
    """Whether a network can be of any use: its weights, its statistics and the features that it gives are numbers."""
    statistics = [tensor for kept in net.calibrations for tensor in kept.statistics.values()]
    return all(bool(tensor.isfinite().all()) for tensor in (features, *net.weights().values(), *statistics))


@torch.no_grad()
def embed(network: nn.Module, images: Tensor) -> Tensor:
    return torch.cat([network(part) for part in images.split(250)])
