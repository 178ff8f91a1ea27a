"""One training step at a time: Algorithm 1 of the paper on Lightning Fabric."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from us3l.data.sources import ImageSet
from us3l.data.views import two_views
from us3l.errors import UserError
from us3l.families import create
from us3l.objective.learner import Learner
from us3l.objective.regularise import GroupDecay
from us3l.objective.sampling import sample_widths
from us3l.slimmable import Slimmable
from us3l.training.recipes import Optimiser, Recipe
from us3l.training.teacher import load_teacher


class Trainer:
    """One step of training at a time; all randomness comes from the seed and the step, so a state is small."""

    def __init__(self, recipe: Recipe, image_set: ImageSet, fabric: Fabric) -> None:
        self.recipe, self.fabric = recipe, fabric
        self.batch = min(recipe.batch_size, len(image_set)) // fabric.world_size  # images on this device
        if self.batch < 2:
            raise UserError(f"{len(image_set)} images are too few to train on {fabric.world_size} devices")
        self.per_epoch = len(image_set) // (self.batch * fabric.world_size)
        planned = recipe.epochs * self.per_epoch
        self.steps = min(planned, recipe.max_steps or planned)
        self.step = 0
        self.images = image_set.images.to(fabric.device)
        self.labels = image_set.labels  # for people to look at, and for supervised baselines
        net = new_network(recipe)
        self.learner = new_learner(recipe, net, image_set).to(memory_format=torch.channels_last)
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

    def take_batch(self) -> Tensor:
        """The indices of this step's images on this device."""
        epoch, within = divmod(self.step, self.per_epoch)
        order = torch.randperm(len(self.images), generator=seeded(self.recipe.seed, epoch))
        start = within * self.batch * self.fabric.world_size + self.fabric.global_rank * self.batch
        return order[start : start + self.batch]

    def make_views(self, indices: Tensor, generator: torch.Generator) -> tuple[Tensor, ...]:
        """The views of images that the objective asks for."""
        views = two_views(self.images[indices.to(self.images.device)], self.recipe.views, generator)
        wanted = views[: self.recipe.objective.views]
        return tuple(view.contiguous(memory_format=torch.channels_last) for view in wanted)

    def labels_of(self, indices: Tensor) -> Tensor | None:
        """What supervised baselines learn from; self-supervised methods never see a label."""
        if not self.recipe.objective.supervised:
            return None
        assert self.labels is not None
        return self.labels[indices].to(self.images.device)

    def train_step(self) -> list[Tensor]:
        """Losses of the networks that ran, the base first; they stay on the device."""
        indices = self.take_batch()
        views = self.make_views(indices, seeded(self.recipe.seed, self.step, self.fabric.global_rank + 1))
        labels = self.labels_of(indices)
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
            losses = self.model(views, base_width, sub_widths, labels, targets)
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
            "data": self.fingerprint(),
            "learner": self.learner.state_dict(),
            "optimiser": self.optimiser.state_dict(),
        }

    def fingerprint(self) -> list[int]:
        """Of the images: their number and the sum of their pixels."""
        return [len(self.images), int(self.images.sum(dtype=torch.int64))]

    def load_state(self, state: dict[str, Any]) -> None:
        if state.get("data") != self.fingerprint():
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


def new_learner(recipe: Recipe, net: Slimmable, image_set: ImageSet) -> Learner:
    objective = recipe.objective
    if objective.supervised and image_set.labels is None:
        raise UserError(f"{image_set.name} has no labels, which base_loss='cross-entropy' learns from")
    classes = 1 + int(image_set.labels.max()) if objective.supervised and image_set.labels is not None else 0
    frozen = load_teacher(recipe.teacher, recipe.views.size) if recipe.teacher and objective.frozen_teacher else None
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
