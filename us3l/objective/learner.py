"""One step of US3L: the losses of all widths on two views of a batch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from us3l.objective.heads import distillation_head, projector
from us3l.objective.losses import negative_cosine, nt_xent
from us3l.objective.spec import Objective
from us3l.slimmable import Slimmable

Targets = tuple[Tensor, Tensor]


class Losses(NamedTuple):
    total: Tensor
    """What to differentiate: the sum of the parts."""
    parts: list[Tensor]
    """The loss of each network that ran, in the order of the widths."""
    targets: Targets
    """The teacher's embeddings of the two views."""


class Learner(nn.Module):
    """The network with all that pre-training adds to it: projector, distillation head, momentum teacher.

    In the paper's letters: `f` is the network followed by the projector, `z` its output, `g` the distillation head.
    """

    def __init__(self, net: Slimmable, objective: Objective, image_size: int) -> None:
        super().__init__()
        self.objective = objective
        self.net = net
        self.projector = projector(feature_dim(net, image_size), objective.hidden, objective.dim)
        self.g = distillation_head(objective.dim, objective.hidden)
        self.teacher = nn.Sequential(copy.deepcopy(net.full), copy.deepcopy(self.projector)).requires_grad_(False)

    def encoder(self, width: float) -> Callable[[Tensor], Tensor]:
        """`f` at a width."""
        network = self.net.bind(width)
        return lambda images: self.projector(network(images))

    @torch.no_grad()
    def update_teacher(self) -> None:
        """Move the teacher towards the network: once a batch, before the step."""
        student: list[Tensor] = [*self.net.full.parameters(), *self.projector.parameters()]
        torch._foreach_lerp_([*self.teacher.parameters()], student, 1 - self.objective.teacher_momentum)

    @torch.no_grad()
    def targets(self, view1: Tensor, view2: Tensor) -> Targets:
        return self.teacher(view1), self.teacher(view2)

    def forward(
        self, view1: Tensor, view2: Tensor, base: float | None, subs: Sequence[float], targets: Targets | None = None
    ) -> Losses:
        """The base loss of the network at width `base` (None: none) and the distillation loss of each of `subs`."""
        t1, t2 = targets or self.targets(view1, view2)
        parts = []
        if base is not None:
            f = self.encoder(base)
            z1, z2 = f(view1), f(view2)
            parts.append((self.base_loss(z1, t2) + self.base_loss(z2, t1)) / 2)
        for width in subs:
            f = self.encoder(width)
            z1, z2 = self.g(f(view1)), self.g(f(view2))
            parts.append((negative_cosine(z1, t2) + negative_cosine(z2, t1)) / 2)
        return Losses(torch.stack(parts).sum(), parts, (t1, t2))

    def base_loss(self, z: Tensor, t: Tensor) -> Tensor:
        return nt_xent(z, t, self.objective.temperature)


def feature_dim(net: Slimmable, image_size: int) -> int:
    """The number of features at width 1, found by running the skeleton, which computes nothing."""
    features = net.skeleton(1.0)(torch.empty(2, 3, image_size, image_size, device="meta"))
    return features.shape[-1]
