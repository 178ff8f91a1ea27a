"""One training step at a time: Algorithm 1 of the paper on Lightning Fabric."""

from __future__ import annotations

import itertools
import math
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from us3l.data.augment import random_views
from us3l.data.contents import Contents
from us3l.data.images import Batch, Images, ImageSet, Step
from us3l.data.preprocessing import Preprocessing
from us3l.distributed.peers import Peers, SyncedBatchNorm
from us3l.objective.learner import Learner, Targets
from us3l.objective.regularise import GroupDecay, sliced_channels
from us3l.objective.sampling import sample_widths
from us3l.slimmable import Slimmable
from us3l.system.errors import UserError
from us3l.system.seeds import seeded
from us3l.training.optimisers import copies, new_optimiser, take_back
from us3l.training.recipes import Recipe
from us3l.training.run_config import Machine
from us3l.training.run_networks import RunNetworks, check_vectors, new_networks
from us3l.width import Width


@dataclass(frozen=True)
class StepResult:
    """What a step found. Tensors stay on the device: whoever looks at them waits for it."""

    step: int
    widths: list[Width]
    """Of the networks that ran, the base first."""
    losses: list[Tensor]
    """Theirs."""
    sound: Tensor
    """Whether all gradients were finite."""
    left_out: Tensor
    """Whether the step changed nothing, because they were not (see `Machine.skip_bad_steps`)."""
    waited: float = 0.0
    """Seconds that it waited for its images."""
    damaged: Sequence[str] = ()
    """Images that could not be read, each with the reason; others took their place."""
    changed: Sequence[str] = ()
    """Images that have other bytes than when they were read before, each with the reason."""
    failure: str | None = None
    """Why this process cannot continue. One of several keeps taking part with blank images until all know of it."""


class Trainer:
    """One step of training at a time; all randomness comes from the seed and the step, so a state is small.

    Args:
        recipe: What is trained, and how.
        images: What it is trained on.
        fabric: The devices and processes.
        machine: How it is computed.
        networks: What is trained, and what it imitates (default: those that the recipe names).
    """

    def __init__(
        self,
        recipe: Recipe,
        images: Images,
        fabric: Fabric,
        machine: Machine | None = None,
        networks: RunNetworks | None = None,
    ) -> None:
        self.recipe, self.fabric, self.machine = recipe, fabric, machine or Machine()
        self.preprocessing = replace(Preprocessing.usual(recipe.views.size), mean=recipe.mean, std=recipe.std)
        """How the trained network is calibrated, evaluated and deployed."""
        self.peers = Peers(fabric.global_rank, fabric.world_size)
        self.images = images.to(fabric.device)
        self.batch = min(recipe.batch_size, images.total) // fabric.world_size  # images on this device
        if self.batch < 2:
            raise UserError(f"{images.total} images are too few to train on {fabric.world_size} devices")
        if self.batch < 2 * self.machine.accumulate:
            raise UserError(f"a batch of {self.batch} on a device is too small for {self.machine.accumulate} parts")
        self.per_epoch = images.total // (self.batch * fabric.world_size)
        planned = recipe.epochs * self.per_epoch
        self.steps = min(planned, recipe.max_steps or planned)
        self.step, self.read_to = 0, -1
        self.reading: Iterator[Batch] = iter(())
        self.failure: str | None = None
        self.skipped = torch.zeros((), dtype=torch.long, device=fabric.device)
        networks = networks or new_networks(recipe)
        net = networks.net
        torch.set_rng_state(networks.random_state)
        learner = new_learner(recipe, net, self.images, self.peers, networks.pretrained_teacher)
        self.learner = learner.to(memory_format=torch.channels_last)
        for network in (net.full, learner.teacher, learner.pretrained_teacher) if self.machine.compile else ():
            if network is not None:
                network.compile()
        self.model = fabric.setup_module(self.learner)
        objective, weight_decay = recipe.objective, recipe.optimiser.weight_decay
        self.decay = GroupDecay(self.learner, sliced_channels(net), weight_decay, objective.groups, objective.alpha)
        optimiser = new_optimiser(recipe.optimiser, self.learner, fabric.device)
        # A hook, because with scaled gradients (16-mixed) they have their true size only just before the step.
        optimiser.register_step_pre_hook(lambda *_: self.apply_decay())
        self.optimiser: Any = fabric.setup_optimizers(optimiser)

    def widths(self, step: int) -> list[Width]:
        """Return the widths that run at a step, snapped to canonical ones."""
        net, objective = self.learner.net, self.recipe.objective
        family = net.family
        shape = family.stages or 1, family.blocks
        drawn = sample_widths(objective, net.min_width, step, self.steps, self.recipe.seed, *shape)
        return [net.canonical(width) for width in drawn]

    def learning_rate(self, step: int) -> float:
        optimiser = self.recipe.optimiser
        warmup = min(optimiser.warmup * self.per_epoch, self.steps)
        if step < warmup:
            return optimiser.lr * step / warmup
        return optimiser.lr * (1 + math.cos(math.pi * (step - warmup) / (self.steps - warmup))) / 2

    def apply_decay(self) -> None:
        begin, end = self.recipe.objective.alpha_ramp or (0.0, 0.0)
        done = self.step / self.steps
        share = 1.0 if done >= end else 0.0 if done <= begin else (done - begin) / (end - begin)
        if self.recipe.optimiser.algorithm == "adamw":
            self.decay.shrink(self.learning_rate(self.step), share)
        else:
            self.decay.add_to_gradients(share)

    def epoch(self, number: int) -> list[Step]:
        """Return the steps of an epoch, and the images that all processes together look at in each."""
        order = self.images.order(seeded(self.recipe.seed, number))
        batches = order[: self.per_epoch * self.batch * self.fabric.world_size].view(self.per_epoch, -1)
        first = number * self.per_epoch
        return [Step(step, number, indices) for step, indices in enumerate(batches, start=first)]

    def steps_from(self, first: int) -> Iterator[Step]:
        """Return the steps that are left from the `first` on, epoch after epoch."""
        trainer = weakref.proxy(self)  # what reads ahead of it must not keep it alive
        epochs = (trainer.epoch(number) for number in itertools.count(first // self.per_epoch))
        steps = itertools.chain.from_iterable(epochs)
        begin = first % self.per_epoch
        return itertools.islice(steps, begin, begin + max(1, self.steps - first))

    def take_batch(self) -> Batch:
        """Return views of this step's images on this device; with labels if the method learns from them."""
        try:
            batch = self.stand_in() if self.failure else self.read_batch()
        except UserError as error:
            if self.peers.count == 1:
                raise
            batch, self.failure = self.stand_in(), str(error)
        if not self.recipe.objective.supervised or batch.labels is None:
            return replace(batch, labels=None)
        return replace(batch, labels=batch.labels.to(self.fabric.device, non_blocking=True))

    def read_batch(self) -> Batch:
        """Return the next batch; of images in files, processes read ahead of it until the run ends."""
        if self.read_to != self.step:
            self.reading = iter(())  # processes that read other steps end before others are started
            self.reading = self.read_from(self.step)
        batch = next(self.reading)
        self.read_to = self.step + 1
        return replace(batch, views=tuple(map(channels_last, batch.views)))

    def read_from(self, first: int) -> Iterator[Batch]:
        """Return this process's part of the images of each step from the `first` on, as random views."""
        recipe, part = self.recipe, (self.peers.rank, self.peers.count)
        steps, count, normal = self.steps_from(first), recipe.objective.views, (recipe.mean, recipe.std)
        device, own = self.fabric.device, recipe.sub_views
        return self.images.views(recipe.views, steps, recipe.seed, count, part, device, *normal, sub_views=own)

    def base_views(self, views: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return those of a batch's views that the base network and the teacher see."""
        return views[: self.recipe.objective.views]

    def sub_views(self, views: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return those of a batch's views that sub-networks see."""
        return views[-self.recipe.objective.views :]  # their own come last

    def sample(self, count: int, generator: torch.Generator) -> ImageSet:
        """Return images to look at, on this device, at the side that the trained network will see the centre of."""
        sample = self.images.sample(count, generator, self.preprocessing.resize)
        return replace(sample, images=sample.images.to(self.fabric.device))

    def random_views(self, images: Tensor, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Return views of images (uint8) as training makes them, with those that sub-networks alone see."""
        kinds = [kind for kind in (self.recipe.views, self.recipe.sub_views) if kind is not None]
        count, mean, std = self.recipe.objective.views, self.recipe.mean, self.recipe.std
        made = (random_views(images, kind, generator, count, mean=mean, std=std) for kind in kinds)
        return tuple(channels_last(view) for views in made for view in views)

    def stand_in(self) -> Batch:
        """Return a batch in the place of one that cannot be had."""
        size = self.recipe.views.size
        views = tuple(
            channels_last(torch.zeros(self.batch, 3, size, size, device=self.fabric.device))
            for _ in range(self.recipe.objective.views)  # which sub-networks see as well
        )
        nothing = torch.zeros(self.batch, dtype=torch.long)
        return Batch(views, nothing, nothing if self.recipe.objective.supervised else None)

    def train_step(self) -> StepResult:
        """Run Algorithm 1 on one batch: all widths in turn, and the optimiser's step, or one for each width."""
        step, widths = self.step, self.widths(self.step)
        batch = self.take_batch()
        for group in self.optimiser.param_groups:
            group["lr"] = self.learning_rate(step)
        self.learner.update_teacher(step, self.steps)

        shares = split(batch, min(self.machine.accumulate, len(batch)))
        targets: Sequence[Targets | None] = [None] * len(shares)
        losses: list[Tensor] = []
        sound = torch.ones((), dtype=torch.bool, device=self.fabric.device)
        updates = [[width] for width in widths] if self.recipe.objective.update == "per-width" else [widths]
        for networks in updates:
            self.optimiser.zero_grad()
            for number, width in enumerate(networks, start=1):
                loss, reached = self.backward(shares, width, targets, last=number == len(networks))
                losses.append(loss)
                targets = reached
            sound = sound & self.finite_gradients()
            left_out = self.update(sound)
        self.learner.remember(*reached, unless=left_out)
        self.skipped += left_out
        self.step += 1
        return StepResult(
            step, widths, losses, sound, left_out, batch.waited, batch.damaged, batch.changed, self.failure
        )

    def update(self, sound: Tensor) -> Tensor:
        """Make the optimiser's step, and take it back if it is to be left out; whether it was.

        Decided on the device, so that nothing waits for it; which takes a copy of the weights.
        """
        left_out = ~sound & (self.skipped < self.machine.skip_bad_steps)
        before = copies(self.optimiser) if self.machine.skip_bad_steps else None
        self.optimiser.step()
        if before is not None:
            take_back(self.optimiser, before, left_out)
        return left_out

    def backward(
        self, shares: list[Batch], width: Width, targets: Sequence[Targets | None], last: bool
    ) -> tuple[Tensor, list[Targets]]:
        """Add the gradient of one network's mean loss over all shares of a batch; the loss, and each share's targets.

        A network at a time, so that only its own activations are in memory. Processes exchange their gradients once,
        after the last share of the last network. The loss is without the weight that its gradient has.
        """
        images = sum(map(len, shares))
        parts: list[Tensor] = []
        reached: list[Targets] = []
        for number, (share, target) in enumerate(zip(shares, targets, strict=True), start=1):
            weight = 1.0 if target is None else self.recipe.objective.weight(width)
            with self.fabric.no_backward_sync(self.model, enabled=not last or number < len(shares)):
                with SyncedBatchNorm(self.peers) if self.machine.sync_bn else nullcontext():
                    views = self.base_views(share.views) if target is None else self.sub_views(share.views)
                    loss, target = self.model(views, width, target, share.labels)
                part = loss * (len(share) / images)
                self.fabric.backward(part * weight)
            parts.append(part.detach())
            reached.append(target)
        return torch.stack(parts).sum(), reached

    def finite_gradients(self) -> Tensor:
        """Return whether all gradients are finite: the same on every process, since they have exchanged them."""
        if getattr(self.fabric.strategy.precision, "scaler", None):  # which skips steps on its own: 16-mixed
            return torch.ones((), dtype=torch.bool, device=self.fabric.device)
        gradients = [p.grad for group in self.optimiser.param_groups for p in group["params"] if p.grad is not None]
        return get_total_norm(gradients).isfinite()

    def state(self) -> dict[str, Any]:
        """Return all that a resumed run needs."""
        return {
            "step": self.step,
            "skipped": int(self.skipped),
            "batch": self.batch * self.peers.count,
            "data": self.images.fingerprint(),
            "learner": self.learner.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "precision": self.fabric.strategy.precision.state_dict(),
        }

    def contents(self) -> Contents:
        """Return the hashes of the images that any process has read so far; all processes must ask together."""
        contents = self.images.contents
        if self.peers.count == 1:
            return contents
        both = torch.from_numpy(np.stack([contents.hashes, contents.statuses])).to(self.fabric.device)
        merged = self.fabric.all_reduce(both, reduce_op="max")  # those that were not read are 0
        assert isinstance(merged, Tensor)
        return Contents(*merged.cpu().numpy())

    def load_state(self, state: dict[str, Any]) -> None:
        now, data = self.images.fingerprint(), state.get("data")
        if not isinstance(data, list) or data != now[: max(2, len(data))]:  # older checkpoints have fewer numbers
            raise UserError(
                f"the images have changed since this run began (now {self.images.total}): bring back those it was "
                "started with, or start a new run"
            )
        batch = self.batch * self.peers.count
        if state.get("batch", batch) != batch:
            raise UserError(
                f"this run was trained on batches of {state['batch']} images, which {self.peers.count} processes would "
                f"make {batch}: resume it on a number of them that divides the batch"
            )
        try:
            tensors = OrderedDict(state["learner"])
            # Checkpoints of earlier versions lack it, and batch norms would take them for those of an old torch.
            tensors._metadata = self.learner.state_dict()._metadata  # type: ignore[attr-defined]
            self.learner.load_state_dict(tensors)
            self.optimiser.load_state_dict(state["optimiser"])
            if state.get("precision"):
                self.fabric.strategy.precision.load_state_dict(state["precision"])
            self.step = state["step"]
            self.skipped.fill_(state.get("skipped", 0))
        except (KeyError, RuntimeError, ValueError, TypeError, AttributeError) as error:
            raise UserError(
                f"the checkpoint does not fit the run's config.yaml: {str(error).splitlines()[0]}"
            ) from None


def split(batch: Batch, count: int) -> list[Batch]:
    """Split a batch into shares of equal size, give or take one image."""
    views = zip(*(view.tensor_split(count) for view in batch.views), strict=True)
    labels = [None] * count if batch.labels is None else batch.labels.tensor_split(count)
    return [Batch(*share) for share in zip(views, batch.indices.tensor_split(count), labels, strict=True)]


def new_learner(
    recipe: Recipe, net: Slimmable, images: Images, peers: Peers, teacher: nn.Module | None = None
) -> Learner:
    objective, classes = recipe.objective, 0
    if objective.supervised:
        if images.labels is None:
            raise UserError(f"{images.name} has no labels, which base_loss='cross-entropy' learns from")
        classes = 1 + int(images.labels.max())
    for width in (1.0, net.min_width) if recipe.network.user_defined else ():
        check_vectors(net.skeleton(width), recipe.views.size, "network", recipe.network.backbone, "size", "meta")
    return Learner(net, objective, recipe.views.size, classes, teacher, peers)


def channels_last(view: Tensor) -> Tensor:
    return view.contiguous(memory_format=torch.channels_last)
