"""One training step at a time: Algorithm 1 of the paper on Lightning Fabric."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor

from us3l.data.sources import ImageSet
from us3l.data.views import two_views
from us3l.errors import UserError
from us3l.families import create
from us3l.objective.learner import Learner
from us3l.objective.regularise import GroupDecay
from us3l.objective.sampling import sample_widths
from us3l.slimmable import Slimmable
from us3l.training.recipes import Recipe


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
        self.labels = image_set.labels  # for people to look at; no step uses them
        net = new_network(recipe)
        learner = Learner(net, recipe.objective, recipe.views.size).to(memory_format=torch.channels_last)
        optimiser = torch.optim.SGD(
            [p for p in learner.parameters() if p.requires_grad],
            lr=recipe.optimiser.lr,
            momentum=recipe.optimiser.momentum,
        )
        self.learner = learner
        self.model, self.optimiser = fabric.setup(learner, optimiser)
        decay = GroupDecay(learner, net, recipe.optimiser.weight_decay, recipe.objective.groups, recipe.objective.alpha)
        # A hook, because with scaled gradients (16-mixed) they have their true size only just before the step.
        optimiser.register_step_pre_hook(lambda *_: decay.add_to_gradients())

    def widths(self, step: int) -> list[float]:
        """The widths that run at a step, snapped to canonical ones."""
        net, objective = self.learner.net, self.recipe.objective
        drawn = sample_widths(objective, net.min_width, step, self.steps, self.recipe.seed)
        return [net.canonical(width) for width in drawn]

    def learning_rate(self, step: int) -> float:
        return self.recipe.optimiser.lr * (1 + math.cos(math.pi * step / self.steps)) / 2

    def take_batch(self) -> Tensor:
        epoch, within = divmod(self.step, self.per_epoch)
        order = torch.randperm(len(self.images), generator=seeded(self.recipe.seed, epoch))
        start = within * self.batch * self.fabric.world_size + self.fabric.global_rank * self.batch
        return self.images[order[start : start + self.batch].to(self.images.device)]

    def train_step(self) -> list[Tensor]:
        """Losses of the networks that ran, the base first; they stay on the device."""
        generator = seeded(self.recipe.seed, self.step, self.fabric.global_rank + 1)
        view1, view2 = two_views(self.take_batch(), self.recipe.views, generator)
        view1, view2 = (view.contiguous(memory_format=torch.channels_last) for view in (view1, view2))
        for group in self.optimiser.param_groups:
            group["lr"] = self.learning_rate(self.step)
        base, *subs = self.widths(self.step)
        passes: list[tuple[float | None, list[float]]] = [(base, subs)]
        if self.recipe.objective.update == "per-width":
            passes = [(base, []), *((None, [width]) for width in subs)]

        self.learner.update_teacher()
        parts, targets = [], None
        for base_width, sub_widths in passes:
            self.optimiser.zero_grad()
            losses = self.model(view1, view2, base_width, sub_widths, targets)
            self.fabric.backward(losses.total)
            self.optimiser.step()
            targets = losses.targets
            parts += [part.detach() for part in losses.parts]
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


def seeded(*numbers: int) -> torch.Generator:
    """A generator of its own for each tuple of numbers."""
    digest = hashlib.sha256(repr(numbers).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
