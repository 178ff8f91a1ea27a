"""One step of a method: the losses of all widths on the views of a batch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache, partial
from inspect import signature
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from us3l.costs import feature_count
from us3l.distributed.peers import ALONE, Peers
from us3l.objective import losses
from us3l.objective.heads import Alignment, HeadLinear, PerView, Queue, per_view, predictor, projector
from us3l.objective.losses import at_least_float32, unit
from us3l.objective.spec import Objective, Target, Term
from us3l.slimmable import Slimmable
from us3l.width import FULL, Width

Targets = dict[Target, PerView]
"""What the networks of a step are compared with, of each view and detached; each names it: see `Term.target`."""


class Outputs(NamedTuple):
    """What a network makes of the views: its features, and `z`, what the projector makes of these."""

    features: PerView
    z: PerView


class Learner(nn.Module):
    """The network with all that pre-training adds to it: projector, heads, teacher, queue.

    In the paper's letters: `f` is the network followed by the projector, `z` its output, `h` the predictor of the base
    loss, `g` the sub-networks' own head. With cross-entropy the projector is a classifier of `classes`.
    `teacher` is the momentum teacher. `pretrained_teacher` is any module from images to vectors: that of SEED, or one
    whose features all widths imitate, `a` being what brings theirs to its dimension. `peers` are the processes that
    share each batch.
    """

    def __init__(
        self,
        net: Slimmable,
        objective: Objective,
        image_size: int,
        classes: int = 0,
        pretrained_teacher: nn.Module | None = None,
        peers: Peers = ALONE,
    ) -> None:
        super().__init__()
        self.objective, self.peers = objective, peers
        self.net = net
        self.pretrained_teacher = pretrained_teacher
        features = feature_count(net.skeleton(1.0), image_size)
        taught = 0 if pretrained_teacher is None else embedding_dim(pretrained_teacher, image_size)
        dim = taught if objective.imitates_by_base_loss else objective.dim
        self.projector: nn.Module = nn.Identity()
        if objective.supervised:
            dim = classes
            self.projector = HeadLinear(features, classes)
        elif objective.base_share:
            self.projector = projector(
                features, objective.hidden, dim, objective.final_norm or objective.projector_norm
            )
        head = partial(predictor, dim, objective.predictor, objective.final_norm)
        self.h = head() if objective.predicts else nn.Identity()
        self.g = head() if objective.head == "new" else nn.Identity()
        self.queue = Queue(objective.queue, dim) if objective.queues else None
        self.a: nn.Module = nn.Identity()
        if objective.teacher_shares:
            narrow = feature_count(net.skeleton(net.min_width), image_size)
            if not features == narrow == taught:
                self.a = Alignment(features, taught)
        self.teacher: nn.Module | None = None
        if objective.has_momentum_teacher:
            self.teacher = nn.Sequential(copy.deepcopy(net.full), copy.deepcopy(self.projector))
        for fixed in (self.teacher, self.pretrained_teacher):
            if fixed is not None:
                fixed.requires_grad_(False)
        self.register_load_state_dict_pre_hook(rename_pretrained_teacher)
        self.train()

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if self.pretrained_teacher is not None:
            self.pretrained_teacher.eval()  # its statistics are those of its own training
        return self

    def embed(self, views: PerView, width: Width) -> PerView:
        """Return `z` of each view at a width."""
        return self.run(views, width).z

    def run(self, views: PerView, width: Width) -> Outputs:
        """Return what the network of a width makes of each view."""
        network = self.net.bind(width)
        features = tuple(network(view) for view in views)
        return Outputs(features, per_view(self.projector, features))

    @torch.no_grad()
    def update_teacher(self, step: int, steps: int) -> None:
        """Move the momentum teacher towards the network: once a batch, before a step of all `steps`."""
        if self.teacher is not None:
            rate = self.objective.teacher_rate(step, steps)
            student: list[Tensor] = [*self.net.full.parameters(), *self.projector.parameters()]
            torch._foreach_lerp_([*self.teacher.parameters()], student, rate)

    @torch.no_grad()
    def targets(self, views: PerView, labels: Tensor | None = None) -> Targets:
        """Return what teachers make of the views, and the labels of the images if there are any."""
        teachers: dict[Target, nn.Module | None] = {
            "momentum_teacher": self.teacher,
            "pretrained_teacher": self.pretrained_teacher,
        }
        targets: Targets = {
            name: tuple(teacher(view) for view in views) for name, teacher in teachers.items() if teacher is not None
        }
        return targets if labels is None else targets | {"labels": (labels,) * len(views)}

    @torch.no_grad()
    def remember(self, *targets: Targets, unless: Tensor | None = None) -> None:
        """Let the queue know the targets of a batch (or of its shares), once all networks were compared with it.

        Args:
            targets: Of each share.
            unless: A condition on the device: where it holds, the queue stays as it was.
        """
        if self.queue is not None:
            source = self.objective.base_terms[0].target
            views = zip(*(share[source] for share in targets), strict=True)
            self.queue.push(unit(torch.cat([self.peers.gather(torch.cat(view)) for view in views])), unless)

    def forward(
        self, views: PerView, width: Width, targets: Targets | None = None, labels: Tensor | None = None
    ) -> tuple[Tensor, Targets]:
        """Return the loss of the network of a width, and the targets of those that follow on the same views.

        The first, which has no targets yet, is the base network and needs the labels, if the method learns from them;
        networks that are given targets are sub-networks.
        """
        base = targets is None
        terms = self.objective.base_terms if base else self.objective.sub_terms
        targets = self.targets(views, labels) if targets is None else targets
        outputs = self.run(views, width)
        parts = [term.share * self.term_loss(term, *self.pair(term, outputs, targets), self.peers) for term in terms]
        if base:
            targets = {**targets, "full": detached(outputs.z)}
        return torch.stack(parts).sum(), targets

    def pair(self, term: Term, outputs: Outputs, targets: Targets) -> tuple[PerView, PerView]:
        """Return what a term compares: a network's outputs, as its loss sees them, and their targets."""
        comparable = units if term.loss.projected else logits
        head: nn.Module = getattr(self, term.head)
        compared = comparable(per_view(head, outputs.features if term.head == "a" else outputs.z))
        if term.target == "outputs":
            return compared, compared  # both views are learned
        expected = {**targets, "stopped": detached(outputs.z)}[term.target]
        return compared, expected if term.target == "labels" else comparable(expected)

    def term_loss(self, term: Term, outputs: PerView, targets: PerView, peers: Peers = ALONE) -> Tensor:
        """Return the loss of a term: the mean over views, by the function that the table names."""
        function: Callable[..., Tensor] = getattr(losses, term.loss.function)
        values: dict[str, Any] = {"peers": peers, "queue": None if self.queue is None else self.queue.rows}
        settings = {
            name: values[name] if name in values else getattr(self.objective, name)
            for name in further_parameters(function)
        }
        pairs = zip(outputs, reversed(targets) if term.loss.crossed else targets, strict=True)
        return torch.stack([function(z, t, **settings) for z, t in pairs]).mean()

    def guidance(
        self, views: PerView, width: Width, labels: Tensor | None = None, seen: PerView | None = None
    ) -> Tensor:
        """Return the pull on the sub-network of a width: the gradient of its loss for each of its outputs (V x N x D).

        The paper's dL/dz of equations 9 and 10, temperatures left out, so that methods can be compared. Of a mixture of
        losses it is the mixture, each for the outputs that it sees. Imitation of a pretrained teacher, which sees other
        outputs, only counts where it is all that is learned.

        Args:
            views: What the full network and the teacher see.
            width: Of the sub-network.
            labels: Of the images, for losses that learn from them.
            seen: What the sub-network sees (default: the same).
        """
        with torch.no_grad():
            run = self.run(seen or views, width)
            targets: Targets = {**self.targets(views, labels), "full": self.embed(views, FULL)}
        pulls: list[Tensor] = []
        terms = self.objective.sub_terms
        for term in [term for term in terms if term.head != "a"] or terms:
            with torch.no_grad():
                outputs, expected = self.pair(term, run, targets)
            same = expected is outputs
            outputs = tuple(output.detach().requires_grad_() for output in outputs)
            loss = self.term_loss(term, outputs, outputs if same else expected)
            gradients = torch.stack(torch.autograd.grad(loss, outputs))
            pulls.append(term.share * gradients * gradients.shape[:2].numel() * (term.temperature or 1.0))
        return torch.stack(pulls).sum(dim=0)


@cache
def further_parameters(function: Callable[..., Tensor]) -> tuple[str, ...]:
    """Return the names of a loss's parameters after the outputs and their targets."""
    return tuple(signature(function).parameters)[2:]


def rename_pretrained_teacher(learner: Learner, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Accept a state of earlier versions: a pretrained teacher was called "expert" there, and "teacher" in SEED."""
    former = prefix + ("teacher." if learner.objective.imitates_by_base_loss else "expert.")
    for name in [name for name in state if name.startswith(former)]:
        state[f"{prefix}pretrained_teacher.{name.removeprefix(former)}"] = state.pop(name)


def units(embeddings: PerView) -> PerView:
    return tuple(map(unit, embeddings))


def logits(outputs: PerView) -> PerView:
    return tuple(map(at_least_float32, outputs))


def detached(embeddings: PerView) -> PerView:
    return tuple(z.detach() for z in embeddings)


@torch.no_grad()
def embedding_dim(network: nn.Module, image_size: int) -> int:
    return network(torch.zeros(2, 3, image_size, image_size)).shape[-1]
