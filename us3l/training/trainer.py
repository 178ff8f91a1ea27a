"""One training step at a time: Algorithm 1 of the paper on Lightning Fabric."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from us3l.data.sources import ImageFiles, ImageSet
from us3l.data.stream import Batch
from us3l.errors import UserError
from us3l.families import create
from us3l.objective.learner import Learner
from us3l.objective.regularise import GroupDecay
from us3l.objective.sampling import sample_widths
from us3l.slimmable import Slimmable
from us3l.training.images import Resident, Streamed
from us3l.training.recipes import Optimiser, Recipe
from us3l.training.teacher import load_teacher


class Trainer:
    """One step of training at a time; all randomness comes from the seed and the step, so a state is small."""

    def __init__(self, recipe: Recipe, images: ImageSet | ImageFiles, fabric: Fabric) -> None:
        self.recipe, self.fabric = recipe, fabric
        self.batch = min(recipe.batch_size, len(images)) // fabric.world_size  # images on this device
        if self.batch < 2:
            raise UserError(f"{len(images)} images are too few to train on {fabric.world_size} devices")
        self.per_epoch = len(images) // (self.batch * fabric.world_size)
        planned = recipe.epochs * self.per_epoch
        self.steps = min(planned, recipe.max_steps or planned)
        self.step, self.epoch = 0, -1
        where = Streamed if isinstance(images, ImageFiles) else Resident
        self.images: Resident | Streamed = where(images, recipe, fabric.device)  # type: ignore[arg-type]
        net = new_network(recipe)
        self.learner = new_learner(recipe, net, self.images).to(memory_format=torch.channels_last)
        optimiser = new_optimiser(recipe.optimiser, self.learner)
        self.model, self.optimiser = fabric.setup(self.learner, optimiser)
        objective, weight_decay = recipe.objective, recipe.optimiser.weight_decay
        self.decay = GroupDecay(self.learner, net, weight_decay, objective.groups, objective.alpha)
        # A hook, because with scaled gradients (16-mixed) they have their true size only just before the step.
        optimiser.register_step_pre_hook(lambda *_: self.apply_decay())

    def widths(self, step: int) -> list[float]:
        """The widths that run at a step, snapped to canonical ones."""
        net, objective = self.learner.net, self.recipe.objective
        drawn = sample_widths(objective, net.min_width, step, self.steps, self.recipe.seed)
        return [net.canonical(width) for width in drawn]

    def learning_rate(self, step: int) -> float:
        optimiser = self.recipe.optimiser
        warmup = min(optimiser.warmup * self.per_epoch, self.steps)
        if step < warmup:
            return optimiser.lr * step / warmup
        return optimiser.lr * (1 + math.cos(math.pi * (step - warmup) / (self.steps - warmup))) / 2

    def apply_decay(self) -> None:
        begin, end = self.recipe.objective.alpha_ramp or (-1.0, 0.0)
        share = min(max((self.step / self.steps - begin) / (end - begin), 0.0), 1.0)
        if self.recipe.optimiser.algorithm == "adamw":
            self.decay.shrink(self.learning_rate(self.step), share)
        else:
            self.decay.add_to_gradients(share)

    def batches(self, epoch: int) -> Sequence[Tensor]:
        """The indices of the images of each step of an epoch, on this device."""
        order = self.images.order(seeded(self.recipe.seed, epoch))
        steps = order[: self.per_epoch * self.batch * self.fabric.world_size].view(self.per_epoch, -1, self.batch)
        return list(steps[:, self.fabric.global_rank])

    def take_batch(self) -> Batch:
        """Views of this step's images on this device; with labels, if and only if the method learns from them."""
        epoch, number = divmod(self.step, self.per_epoch)
        if self.epoch != epoch:
            self.epoch, self.epoch_batches = epoch, self.batches(epoch)
        generator = seeded(self.recipe.seed, self.step, self.fabric.global_rank + 1)
        batch = self.images.batch(self.epoch_batches, number, epoch, generator)
        if not self.recipe.objective.supervised or batch.labels is None:
            return replace(batch, labels=None)
        return replace(batch, labels=batch.labels.to(self.fabric.device))

    def train_step(self) -> list[Tensor]:
        """Losses of the networks that ran, the base first; they stay on the device."""
        batch = self.take_batch()
        for group in self.optimiser.param_groups:
            group["lr"] = self.learning_rate(self.step)
        base, *subs = self.widths(self.step)
        passes: list[tuple[float | None, list[float]]] = [(base, subs)]
        if self.recipe.objective.update == "per-width":
            passes = [(base, []), *((None, [width]) for width in subs)]

        self.learner.update_teacher(self.step / self.steps)
        parts, targets = [], None
        for base_width, sub_widths in passes:
            self.optimiser.zero_grad()
            losses = self.model(batch.views, base_width, sub_widths, batch.labels, targets)
            self.fabric.backward(losses.total)
            self.optimiser.step()
            targets = losses.targets
            parts += [part.detach() for part in losses.parts]
        assert targets is not None
        self.learner.remember(targets)
        self.step += 1
        return parts

    def state(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "data": self.images.fingerprint(),
            "learner": self.learner.state_dict(),
            "optimiser": self.optimiser.state_dict(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        if state.get("data") != self.images.fingerprint():
            raise UserError(
                f"the images have changed since this run began (now {len(self.images)}): bring back those it was "
                "started with, or start a new run"
            )
        try:
            self.learner.load_state_dict(state["learner"])
            self.optimiser.load_state_dict(state["optimiser"])
            self.step = state["step"]
        except (KeyError, RuntimeError, ValueError) as error:
            raise UserError(
                f"the checkpoint does not fit the run's config.yaml: {str(error).splitlines()[0]}"
            ) from None


def new_network(recipe: Recipe) -> Slimmable:
    """The network of a recipe before training; the seed decides its weights."""
    network = recipe.network
    torch.manual_seed(recipe.seed)
    options: dict[str, Any] = {name: getattr(network, name) for name in ("patch", "heads", "depth")}
    options = {name: value for name, value in options.items() if value is not None}
    if network.backbone.startswith("vit"):
        patch = {"patch": 4 if network.stem == "cifar" else 16}
        options = patch | options | {"image_size": recipe.views.size, "frozen_patches": network.frozen_patches}
    else:
        options["stem"] = network.stem
    switchable = recipe.objective.fixed_widths if network.switchable else None
    if network.switchable and switchable is None:
        raise UserError("switchable batch norm needs a list of widths: --fixed-widths")
    net = create(
        network.backbone,
        base=network.base,
        min_width=network.min_width,
        switchable=switchable,
        individual=network.individual,
        **options,
    )
    for width in recipe.objective.fixed_widths or ():
        net.check(width)
    return net


def new_learner(recipe: Recipe, net: Slimmable, images: Resident | Streamed) -> Learner:
    objective, classes, frozen = recipe.objective, 0, None
    if objective.supervised:
        if images.labels is None:
            raise UserError(f"{images.name} has no labels, which base_loss='cross-entropy' learns from")
        classes = 1 + int(images.labels.max())
    if objective.frozen_teacher and recipe.teacher:
        frozen = load_teacher(recipe.teacher, recipe.views.size)
    return Learner(net, objective, recipe.views.size, classes, frozen)


def new_optimiser(settings: Optimiser, module: nn.Module) -> torch.optim.Optimizer:
    """Without weight decay, which `GroupDecay` does."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if settings.algorithm == "sgd":
        return torch.optim.SGD(parameters, lr=settings.lr, momentum=settings.momentum)
    if settings.algorithm == "adamw":
        return torch.optim.AdamW(parameters, lr=settings.lr, betas=(settings.momentum, 0.999), weight_decay=0.0)
    try:
        from timm.optim import Lars
    except ImportError:
        raise UserError("LARS comes from timm: pip install 'us3l[lars]'") from None
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "always_adapt": True},
        {"params": [p for p in parameters if p.ndim <= 1]},  # norms and biases are left alone, as is usual
    ]
    return Lars(groups, lr=settings.lr, momentum=settings.momentum)


def seeded(*numbers: int) -> torch.Generator:
    """A generator of its own for each tuple of numbers."""
    digest = hashlib.sha256(repr(numbers).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
