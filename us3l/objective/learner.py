"""One step of a method: the losses of all widths on two views of a batch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from us3l.objective.heads import predictor, projector
from us3l.objective.losses import info_nce, negative_cosine, nt_xent
from us3l.objective.spec import Objective
from us3l.slimmable import Slimmable

Pair = tuple[Tensor, Tensor]
"""Something of each of the two views."""


class Targets(NamedTuple):
    """What networks are compared with: detached embeddings of both views."""

    teacher: Pair | None
    base: Pair | None


class Losses(NamedTuple):
    total: Tensor
    """What to differentiate: the sum of the parts."""
    parts: list[Tensor]
    """The loss of each network that ran, in the order of the widths."""
    targets: Targets


class Learner(nn.Module):
    """The network with all that pre-training adds to it: projector, heads, momentum teacher.

    In the paper's letters: `f` is the network followed by the projector, `z` its output, `h` the predictor of the MSE
    base loss, `g` the sub-networks' own head.
    """

    def __init__(self, net: Slimmable, objective: Objective, image_size: int) -> None:
        super().__init__()
        self.objective = objective
        self.net = net
        self.projector = projector(feature_dim(net, image_size), objective.hidden, objective.dim)
        self.h = predictor(objective.dim, objective.predictor) if objective.base_loss == "mse" else nn.Identity()
        self.g = predictor(objective.dim, objective.predictor) if objective.head == "new" else nn.Identity()
        self.teacher: nn.Module | None = None
        if objective.momentum_base or objective.momentum_sub:
            self.teacher = nn.Sequential(copy.deepcopy(net.full), copy.deepcopy(self.projector)).requires_grad_(False)

    def encoder(self, width: float) -> Callable[[Tensor], Tensor]:
        """`f` at a width."""
        network = self.net.bind(width)
        return lambda images: self.projector(network(images))

    @torch.no_grad()
    def update_teacher(self) -> None:
        """Move the teacher towards the network: once a batch, before the step."""
        if self.teacher is not None:
            student: list[Tensor] = [*self.net.full.parameters(), *self.projector.parameters()]
            torch._foreach_lerp_([*self.teacher.parameters()], student, 1 - self.objective.teacher_momentum)

    @torch.no_grad()
    def teach(self, view1: Tensor, view2: Tensor) -> Pair | None:
        return None if self.teacher is None else (self.teacher(view1), self.teacher(view2))

    def forward(
        self, view1: Tensor, view2: Tensor, base: float | None, subs: Sequence[float], targets: Targets | None = None
    ) -> Losses:
        """The base loss of the network at width `base` (None: none) and the loss of each sub-network of `subs`.

        Targets are computed from the views, unless those of an earlier call on the same views are given.
        """
        targets = targets or Targets(self.teach(view1, view2), None)
        parts = []
        if base is not None:
            f = self.encoder(base)
            z1, z2 = f(view1), f(view2)
            parts.append(self.base_loss((z1, z2), targets))
            targets = targets._replace(base=(z1.detach(), z2.detach()))
        sub_loss = self.base_loss if self.objective.distill_loss == "own" else self.distillation_loss
        for width in subs:
            f = self.encoder(width)
            parts.append(sub_loss((f(view1), f(view2)), targets))
        return Losses(torch.stack(parts).sum(), parts, targets)

    def base_loss(self, z: Pair, targets: Targets) -> Tensor:
        t = require(targets.teacher) if self.objective.momentum_base else z
        if self.objective.base_loss == "infonce":
            return across_views(partial(nt_xent, temperature=self.objective.temperature), z, t)
        return across_views(negative_cosine, (self.h(z[0]), self.h(z[1])), (t[0].detach(), t[1].detach()))

    def distillation_loss(self, z: Pair, targets: Targets) -> Tensor:
        t = require(targets.teacher if self.objective.momentum_sub else targets.base)
        head = self.h if self.objective.head == "shared" else self.g
        loss = negative_cosine
        if self.objective.distill_loss == "infonce":
            loss = partial(info_nce, temperature=self.objective.temperature)
        return across_views(loss, (head(z[0]), head(z[1])), t)


def across_views(loss: Callable[[Tensor, Tensor], Tensor], z: Pair, t: Pair) -> Tensor:
    """Each view against the target of the other."""
    return (loss(z[0], t[1]) + loss(z[1], t[0])) / 2


def require(targets: Pair | None) -> Pair:
    assert targets is not None, "the base network or the teacher must run before what is compared with it"
    return targets


def feature_dim(net: Slimmable, image_size: int) -> int:
    """The number of features at width 1, found by running the skeleton, which computes nothing."""
    features = net.skeleton(1.0)(torch.empty(2, 3, image_size, image_size, device="meta"))
    return features.shape[-1]
