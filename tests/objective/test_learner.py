"""One whole step against a naive computation of Algorithm 1 that shares no code with ours."""

import copy
from dataclasses import replace

import pytest
import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins import DoublePrecision
from torch import nn
from torch.nn import functional as F

from us3l.data.augment import random_views
from us3l.data.sources import ImageSet
from us3l.families.family import Family
from us3l.objective.heads import Alignment
from us3l.objective.learner import Learner
from us3l.objective.methods import method
from us3l.paper.cases import cases
from us3l.system.seeds import seeded
from us3l.training.recipes import MINI, Network, Optimiser, Recipe
from us3l.training.run_networks import new_networks
from us3l.training.trainer import Trainer

pytestmark = pytest.mark.filterwarnings("ignore:width .* is not calibrated")
LR, DECAY, GROUPS, ALPHA, TAU, MOMENTUM, M, COLD = 0.1, 0.01, 8, 0.05, 0.5, 0.9, 0.9, 0.1
STEPS = 8


class Tiny(Family):
    """Two convolutions: what takes channel after channel is quick with it."""

    def signature(self, width):
        return round(8 * width), round(16 * width)

    def __call__(self, width):
        first, second = self.signature(width)
        return nn.Sequential(
            *(nn.Conv2d(3, first, 3, padding=1, bias=False), nn.BatchNorm2d(first), nn.ReLU()),
            *(nn.Conv2d(first, second, 3, stride=2, padding=1), nn.BatchNorm2d(second), nn.ReLU()),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        )


TINY = Network("tests:Tiny")


def recipe(network=TINY, **objective) -> Recipe:
    return replace(
        MINI,
        network=network,
        objective=replace(
            MINI.objective, hidden=24, predictor=24, dim=12, temperature=TAU, teacher_momentum=M, **objective
        ),
        optimiser=Optimiser(lr=LR, momentum=MOMENTUM, weight_decay=DECAY),
        views=replace(MINI.views, size=8),
        batch_size=8,
        max_steps=STEPS,
    )


class Exact(DoublePrecision):
    """Fabric's own rounds what a module gives back, and so the targets, to 32 bits."""

    def convert_output(self, data):
        return data


def trainer(teacher=None, network=TINY, **objective) -> Trainer:
    images = torch.randint(0, 256, (32, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    fabric = Fabric(accelerator="cpu", plugins=[Exact()])
    settings = recipe(network, **objective)
    networks = new_networks(settings, Tiny() if network is TINY else None)
    networks = replace(networks, pretrained_teacher=teacher)
    return Trainer(settings, ImageSet("noise", images), fabric, networks=networks)


def naive_infonce(z, t):
    """Equation 2, anchor by anchor."""
    z, t = z / z.norm(dim=1, keepdim=True), t / t.norm(dim=1, keepdim=True)
    loss = 0.0
    for first, second in ((z, t), (t, z)):
        for i in range(len(z)):
            others = [j for j in range(len(z)) if j != i]
            positive = (first[i] @ second[i] / TAU).exp()
            negatives = sum((first[i] @ v[j] / TAU).exp() for v in (first, second) for j in others)
            loss = loss - (positive / (positive + negatives)).log() / (2 * len(z))
    return loss


def naive_mse(p, t):
    """Equation 6."""
    return -sum((a @ b) / (a.norm() * b.norm()) for a, b in zip(p, t, strict=True)) / len(p)


def naive_nce_distillation(p, t):
    """Equation 7."""
    p, t = p / p.norm(dim=1, keepdim=True), t / t.norm(dim=1, keepdim=True)
    return sum(-p[i] @ t[i] / TAU + sum((p[i] @ k / TAU).exp() for k in t).log() for i in range(len(p))) / len(p)


def naive_relations(z, t):
    """SEED's: the similarities to all samples but one's own, as the target has them."""
    loss = 0.0
    z, t = (x / x.norm(dim=1, keepdim=True) for x in (z, t))
    for i in range(len(z)):
        near = [j for j in range(len(z)) if j != i]
        expected = [(t[i] @ t[j] / COLD).exp() for j in near]
        found = [(z[i] @ t[j] / COLD).exp() for j in near]
        for p, q in zip(expected, found, strict=True):
            loss = loss - p / sum(expected) * (q / sum(found)).log() / len(z)
    return loss


class Naive:
    """The same method with carved networks, whose gradients are added by hand into the full one."""

    def __init__(self, learner: Learner) -> None:
        self.learner = copy.deepcopy(learner)
        self.parameters = [p for p in self.learner.parameters() if p.requires_grad]
        self.velocity = {}

    def embed(self, images, carved):
        features = carved(images)
        first = self.learner.projector[0]
        hidden = F.linear(features, first.weight[:, : features.shape[1]], first.bias)
        return self.learner.projector[1:](hidden)

    def base_loss(self, z1, z2, teacher):
        objective, h = self.learner.objective, self.learner.h
        t1, t2 = teacher if objective.momentum_base else (z1, z2)
        if objective.base_loss == "infonce":
            return (naive_infonce(z1, t2) + naive_infonce(z2, t1)) / 2
        return (naive_mse(h(z1), t2.detach()) + naive_mse(h(z2), t1.detach())) / 2

    def sub_loss(self, z1, z2, teacher, base):
        objective = self.learner.objective
        if objective.distill_loss == "none":
            return self.base_loss(z1, z2, teacher)
        head = {"none": lambda z: z, "shared": self.learner.h, "new": self.learner.g}[objective.head]
        t1, t2 = teacher if objective.momentum_sub else base
        loss = naive_mse if objective.distill_loss == "mse" else naive_nce_distillation
        return (loss(head(z1), t2) + loss(head(z2), t1)) / 2

    def taught(self, features, view):
        """Of one view: the loss that compares features with those of a pretrained teacher."""
        objective, head = self.learner.objective, self.learner.a
        t = self.learner.pretrained_teacher(view)
        if isinstance(head, Alignment) and not features.shape[1] == head.in_features == head.out_features:
            features = F.linear(features, head.weight[:, : features.shape[1]], head.bias)
        total = objective.teacher_features * naive_mse(features, t)
        return total + objective.teacher_relations * naive_relations(features, t)

    def step(self, views, widths, lr, per_width=False):
        objective = self.learner.objective
        taught = objective.teacher_features + objective.teacher_relations
        teacher = None
        if self.learner.objective.momentum_base or self.learner.objective.momentum_sub:
            student = [*self.learner.net.full.parameters(), *self.learner.projector.parameters()]
            with torch.no_grad():
                for old, new in zip(self.learner.teacher.parameters(), student, strict=True):
                    old.copy_(M * old + (1 - M) * new)
                teacher = [self.learner.teacher(view) for view in views]
        losses, base = [], None
        for parameter in self.parameters:
            parameter.grad = None
        for number, width in enumerate(widths):
            carved = self.learner.net.carve(width).train()
            value = torch.zeros(())
            if taught < 1:
                z1, z2 = (self.embed(view, carved) for view in views)
                if number == 0:
                    value, base = self.base_loss(z1, z2, teacher), (z1.detach(), z2.detach())
                else:
                    value = self.sub_loss(z1, z2, teacher, base)
            if taught:
                value = (1 - taught) * value + sum(self.taught(carved(view), view) for view in views) / len(views)
            (value if number == 0 else float(width) ** objective.width_power * value).backward()
            losses.append(value.item())
            full = dict(self.learner.net.full.named_parameters())
            for name, part in carved.named_parameters():
                whole = full[name]
                whole.grad = torch.zeros_like(whole) if whole.grad is None else whole.grad
                whole.grad[tuple(slice(n) for n in part.shape)] += part.grad
            if per_width:
                self.update(lr)
        if not per_width:
            self.update(lr)
        return losses

    @torch.no_grad()
    def update(self, lr):
        net = self.learner.net
        narrow = dict(net.skeleton(net.min_width).named_parameters())
        grouped = {id(p) for name, p in net.full.named_parameters() if len(narrow[name]) < len(p)}
        for parameter in self.parameters:
            if parameter.grad is None:
                continue
            channels = len(parameter)
            for k in range(channels):
                rate = DECAY
                if id(parameter) in grouped:
                    rate *= 1 - min(k // max(1, channels // GROUPS), GROUPS - 1) * ALPHA
                parameter.grad[k] += rate * parameter[k]
            velocity = self.velocity.get(id(parameter))
            velocity = parameter.grad.clone() if velocity is None else MOMENTUM * velocity + parameter.grad
            self.velocity[id(parameter)] = velocity
            parameter -= lr * velocity
            parameter.grad = None


def compare(ours, steps):
    naive = Naive(ours.learner)
    for _ in range(steps):
        step, widths = ours.step, ours.widths(ours.step)
        images = ours.images.images[ours.epoch(step // ours.per_epoch)[step % ours.per_epoch].indices]
        count = ours.recipe.objective.views
        views = random_views(images, ours.recipe.views, seeded(ours.recipe.seed, step, 1), count)
        per_width = ours.recipe.objective.update == "per-width"
        expected = naive.step([view.double() for view in views], widths, ours.learning_rate(step), per_width)
        found = [loss.item() for loss in ours.train_step().losses]
        assert found == pytest.approx(expected, abs=1e-7)
    assert len(widths) == ours.recipe.objective.samples
    for (name, mine), other in zip(ours.learner.named_parameters(), naive.learner.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-7, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize(
    "changes",
    [{}, {"update": "per-width"}, {"max_first": False, "width_power": -1.0}],
    ids=["per-batch", "per-width", "width-power"],
)
def test_a_run_of_us3l_equals_a_naive_computation_of_algorithm_1(changes):
    compare(trainer(network=Network(base=8), **changes), STEPS)


@pytest.mark.parametrize("case", cases("app-ablation"), ids=lambda case: case.name)
def test_every_loss_design_of_the_paper_equals_its_naive_computation(case):
    """And has, and trains, exactly what it should."""
    ours = trainer(**case.objective | {"alpha": ALPHA})
    names = [name for name, _ in ours.learner.named_parameters()]
    objective = ours.recipe.objective
    assert any(name.startswith("h.") for name in names) == (objective.base_loss == "mse")
    assert any(name.startswith("g.") for name in names) == (objective.head == "new")
    assert any(name.startswith("teacher.") for name in names) == (objective.momentum_base or objective.momentum_sub)
    before = {name: p.detach().clone() for name, p in ours.learner.named_parameters()}
    compare(ours, steps=2)
    assert not {name for name, p in ours.learner.named_parameters() if torch.equal(before[name], p)}


@pytest.mark.parametrize("dim", [12, 16], ids=["narrower", "equal"])
@pytest.mark.parametrize(
    "changes",
    [
        {**method("imitate").objective, "teacher_features": 0.7, "teacher_relations": 0.3},
        {"teacher_features": 0.3, "teacher_relations": 0.2, "max_first": False, "gradual": False},
    ],
    ids=["alone", "with-us3l"],
)
def test_imitation_of_a_pretrained_teacher_equals_its_naive_computation(changes, dim):
    """A teacher of another dimension than the network's features, and one of the same."""
    torch.manual_seed(1)
    teacher = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, dim), nn.Tanh())
    ours = trainer(teacher=teacher, **changes | {"relation_temperature": COLD, "alpha": ALPHA})
    before = [p.clone() for p in teacher.parameters()]
    compare(ours, steps=2)
    assert all(torch.equal(a, b) for a, b in zip(before, ours.learner.pretrained_teacher.parameters(), strict=True))
    assert ours.learner.a.weight.shape == (dim, 16)


def test_the_teacher_follows_the_closed_form_of_its_recursion():
    ours = trainer()
    start = [p.clone() for p in ours.learner.teacher.parameters()]
    students = []
    for _ in range(STEPS):
        students.append([p.detach().clone() for p in ours.learner.net.full.parameters()])
        ours.train_step()
    for i, parameter in enumerate(ours.learner.teacher[0].parameters()):
        expected = M**STEPS * start[i]
        for age, student in enumerate(reversed(students)):
            expected = expected + (1 - M) * M**age * student[i]
        torch.testing.assert_close(parameter, expected, rtol=1e-9, atol=1e-12)


def test_a_step_updates_exactly_what_it_should():
    ours = trainer()
    while ours.step < STEPS:
        before = {name: p.detach().clone() for name, p in ours.learner.named_parameters()}
        alone = len(ours.widths(ours.step)) == 1
        ours.train_step()
        same = {name for name, p in ours.learner.named_parameters() if torch.equal(before[name], p)}
        if alone:
            assert {name for name in same if not name.startswith("teacher")} == {
                name for name in before if name.startswith("g.")
            }
        else:
            assert not same
        assert all(p.grad is None for p in ours.learner.teacher.parameters())


def test_both_views_share_one_slicing_of_the_weights():
    ours = trainer()
    calls = []
    original = ours.learner.net.slices
    ours.learner.net.slices = lambda width, copy: calls.append(width) or original(width, copy)
    ours.step = STEPS - 2
    base, *subs = ours.widths(ours.step)
    assert all(width < base for width in subs)
    ours.train_step()
    assert calls == subs
