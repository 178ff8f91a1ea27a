"""One step of a method: the losses of all widths on the views of a batch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from us3l.costs import feature_count
from us3l.distributed.peers import ALONE, Peers
from us3l.objective.heads import Alignment, HeadLinear, PerView, Queue, per_view, predictor, projector
from us3l.objective.losses import (
    at_least_float32,
    info_nce,
    moco,
    negative_cosine,
    nt_xent,
    relations,
    seed,
    soft_cross_entropy,
    unit,
)
from us3l.objective.scaling import teacher_rate
from us3l.objective.spec import Objective, Part
from us3l.slimmable import Slimmable
from us3l.width import FULL, Width

Loss = Callable[[Tensor, Tensor], Tensor]


class Targets(NamedTuple):
    """What networks are compared with: detached embeddings of the views."""

    teacher: PerView | None
    base: PerView | None
    wider: PerView | None = None
    """Of the sub-network that ran before, where it teaches the next."""
    expert: PerView | None = None
    """Features that a pretrained teacher of all widths has."""


class Outputs(NamedTuple):
    """What a network makes of the views: its features, and `z`, what the projector makes of these."""

    features: PerView
    z: PerView


class Learner(nn.Module):
    """The network with all that pre-training adds to it: projector, heads, teacher, queue.

    In the paper's letters: `f` is the network followed by the projector, `z` its output, `h` the predictor of the base
    loss, `g` the sub-networks' own head. With cross-entropy the projector is a classifier of `classes`.
    `frozen` is a pretrained teacher, any module from images to vectors: that of SEED, or the `expert` whose features
    all widths imitate, `a` being what brings theirs to its dimension. `peers` are the processes that share each batch.
    """

    def __init__(
        self,
        net: Slimmable,
        objective: Objective,
        image_size: int,
        classes: int = 0,
        frozen: nn.Module | None = None,
        peers: Peers = ALONE,
    ) -> None:
        super().__init__()
        self.objective, self.peers = objective, peers
        self.net = net
        self.teacher = None if objective.taught else frozen
        self.expert = frozen if objective.taught else None
        features = feature_count(net.skeleton(1.0), image_size)
        dim = objective.dim if self.teacher is None else embedding_dim(self.teacher, image_size)
        self.projector: nn.Module = nn.Identity()
        if objective.supervised:
            dim = classes
            self.projector = HeadLinear(features, classes)
        elif "own" in objective.base_shares:
            self.projector = projector(
                features, objective.hidden, dim, objective.final_norm or objective.projector_norm
            )
        head = partial(predictor, dim, objective.predictor, objective.final_norm)
        self.h = head() if objective.predicts else nn.Identity()
        self.g = head() if objective.head == "new" else nn.Identity()
        self.queue = Queue(objective.queue, dim) if objective.queues else None
        self.a: nn.Module = nn.Identity()
        if self.expert is not None:
            expected = embedding_dim(self.expert, image_size)
            if not features == feature_count(net.skeleton(net.min_width), image_size) == expected:
                self.a = Alignment(features, expected)
        if objective.momentum_base or objective.momentum_sub:
            self.teacher = nn.Sequential(copy.deepcopy(net.full), copy.deepcopy(self.projector))
        for fixed in (self.teacher, self.expert):
            if fixed is not None:
                fixed.requires_grad_(False)
        self.train()

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        frozen = self.teacher if self.objective.frozen_teacher else self.expert
        if frozen is not None:
            frozen.eval()  # its statistics are those of its own training
        return self

    def embed(self, views: PerView, width: Width) -> PerView:
        """`z` of each view at a width."""
        return self.run(views, width).z

    def run(self, views: PerView, width: Width) -> Outputs:
        """What the network of a width makes of each view."""
        network = self.net.bind(width)
        features = tuple(network(view) for view in views)
        return Outputs(features, per_view(self.projector, features))

    @torch.no_grad()
    def update_teacher(self, step: int, steps: int) -> None:
        """Move the momentum teacher towards the network: once a batch, before a step of all `steps`."""
        if self.teacher is not None and not self.objective.frozen_teacher:
            rate = teacher_rate(self.objective, step, steps)
            student: list[Tensor] = [*self.net.full.parameters(), *self.projector.parameters()]
            torch._foreach_lerp_([*self.teacher.parameters()], student, rate)

    @torch.no_grad()
    def teach(self, views: PerView) -> PerView | None:
        return None if self.teacher is None else tuple(self.teacher(view) for view in views)

    @torch.no_grad()
    def targets(self, views: PerView) -> Targets:
        """What teachers make of the views."""
        expert = None if self.expert is None else tuple(self.expert(view) for view in views)
        return Targets(self.teach(views), None, expert=expert)

    @torch.no_grad()
    def remember(self, *targets: Targets, unless: Tensor | None = None) -> None:
        """Let the queue know the targets of a batch (or of its shares), once all networks were compared with it.

        Args:
            targets: Of each share.
            unless: A condition on the device: where it holds, the queue stays as it was.
        """
        if self.queue is not None:
            views = zip(*(require(share.teacher) for share in targets), strict=True)
            self.queue.push(unit(torch.cat([self.peers.gather(torch.cat(view)) for view in views])), unless)

    def forward(
        self, views: PerView, width: Width, targets: Targets | None = None, labels: Tensor | None = None
    ) -> tuple[Tensor, Targets]:
        """The loss of the network of a width, and the targets of those that follow on the same views.

        The first, which has no targets yet, is the base network; networks that are given targets are sub-networks.
        """
        base = targets is None
        targets = self.targets(views) if targets is None else targets
        outputs = self.run(views, width)
        losses = [
            share * self.part_loss(part, *self.pair(part, outputs, targets), labels, self.peers)
            for part, share in (self.objective.base_shares if base else self.objective.sub_shares).items()
        ]
        if base:
            targets = targets._replace(base=detached(outputs.z))
        elif self.objective.wider_teaches:
            targets = targets._replace(wider=detached(outputs.z))
        return torch.stack(losses).sum(), targets

    def base_pair(self, z: PerView, targets: Targets) -> tuple[PerView, PerView]:
        """What the base loss compares: outputs, as it sees them, and their targets."""
        if self.objective.supervised:
            logits = tuple(map(at_least_float32, z))
            return logits, logits  # the labels are the targets
        outputs = units(per_view(self.h, z))
        if self.objective.momentum_base or self.objective.frozen_teacher:
            return outputs, units(require(targets.teacher))
        if self.objective.base_loss == "mse":
            return outputs, units(detached(z))
        return outputs, outputs  # both views are learned

    def base_loss(self, outputs: PerView, targets: PerView, labels: Tensor | None, peers: Peers = ALONE) -> Tensor:
        o = self.objective
        if o.supervised:
            assert labels is not None, "cross-entropy needs labels"
            return torch.stack([F.cross_entropy(logits, labels) for logits in outputs]).mean()
        loss: Loss
        if self.queue is not None:
            queue, temperature = self.queue.rows, o.temperature
            loss = partial(moco, queue=queue, temperature=temperature)
            if o.base_loss == "seed":
                cold = o.teacher_temperature
                loss = partial(seed, queue=queue, temperature=temperature, teacher_temperature=cold)
        elif o.base_loss == "infonce":
            loss = partial(nt_xent, temperature=o.temperature, peers=peers)
        elif o.base_loss == "mocov3":
            loss = partial(info_nce, temperature=o.temperature, peers=peers)
        else:  # mse, seed-mse
            loss = negative_cosine
        return across_views(loss, outputs, targets)

    def pair(self, part: Part, outputs: Outputs, targets: Targets) -> tuple[PerView, PerView]:
        """What a part of a network's loss compares."""
        z = outputs.z
        if part == "own":
            return self.base_pair(z, targets)
        if part in self.objective.taught:
            return units(per_view(self.a, outputs.features)), units(require(targets.expert))
        t = targets.wider or require(targets.teacher if self.objective.momentum_sub else targets.base)
        if part == "relations":
            return units(z), units(t)
        if self.objective.distill_loss == "soft":
            return tuple(map(at_least_float32, z)), tuple(map(at_least_float32, t))
        return units(per_view(self.h if self.objective.head == "shared" else self.g, z)), units(t)

    def part_loss(
        self, part: Part, outputs: PerView, targets: PerView, labels: Tensor | None, peers: Peers = ALONE
    ) -> Tensor:
        """A part of the loss of a network."""
        o = self.objective
        if part == "own":
            return self.base_loss(outputs, targets, labels, peers)
        if part in o.taught:  # each view as the teacher sees the same one
            both = zip(outputs, targets, strict=True)
            if part == "teacher_features":
                return torch.stack([negative_cosine(z, t) for z, t in both]).mean()
            heat = o.relation_temperature
            return torch.stack([relations(z, t, t, heat, heat, peers) for z, t in both]).mean()
        if part == "relations":  # to the other view of the other samples, as the target of the same view has them
            views = zip(outputs, targets, reversed(targets), strict=True)
            return torch.stack(
                [relations(*view, o.temperature, o.relation_temperature, peers) for view in views]
            ).mean()
        losses: dict[str, Loss] = {
            "mse": negative_cosine,
            "infonce": partial(info_nce, temperature=o.temperature, peers=peers),
            "nt-xent": partial(nt_xent, temperature=o.temperature, peers=peers),
            "soft": soft_cross_entropy,
        }
        return across_views(losses[o.distill_loss], outputs, targets)

    def guidance(
        self, views: PerView, width: Width, labels: Tensor | None = None, seen: PerView | None = None
    ) -> Tensor:
        """How the sub-network of a width is pulled: the gradient of its loss for each of its outputs (V x N x D).

        The paper's dL/dz of equations 9 and 10, temperatures left out, so that methods can be compared. Of a mixture of
        losses it is the mixture, each for the outputs that it sees; the target is never a wider sub-network.
        Imitation of a pretrained teacher, which sees other outputs, only counts where it is all that is learned.

        Args:
            views: What the full network and the teacher see.
            width: Of the sub-network.
            labels: Of the images, for losses that learn from them.
            seen: What the sub-network sees (default: the same).
        """
        with torch.no_grad():
            run, targets = self.run(seen or views, width), self.targets(views)._replace(base=self.embed(views, FULL))
        found: list[Tensor] = []
        shares = self.objective.sub_shares
        if "own" in self.objective.base_shares:
            shares = {part: share for part, share in shares.items() if part not in self.objective.taught}
        for part, share in shares.items():
            with torch.no_grad():
                outputs, expected = self.pair(part, run, targets)
            same = expected is outputs
            outputs = tuple(output.detach().requires_grad_() for output in outputs)
            loss = self.part_loss(part, outputs, outputs if same else expected, labels)
            gradients = torch.stack(torch.autograd.grad(loss, outputs))
            found.append(share * gradients * gradients.shape[:2].numel() * self.objective.gradient_scale(part))
        return torch.stack(found).sum(dim=0)


def across_views(loss: Loss, outputs: PerView, targets: PerView) -> Tensor:
    """Each view against the target of the other; a single view against its own."""
    return torch.stack([loss(z, t) for z, t in zip(outputs, reversed(targets), strict=True)]).mean()


def units(embeddings: PerView) -> PerView:
    return tuple(map(unit, embeddings))


def detached(embeddings: PerView) -> PerView:
    return tuple(z.detach() for z in embeddings)


def require(targets: PerView | None) -> PerView:
    assert targets is not None, "the base network or the teacher must run before what is compared with it"
    return targets


@torch.no_grad()
def embedding_dim(network: nn.Module, image_size: int) -> int:
    return network(torch.zeros(2, 3, image_size, image_size)).shape[-1]
