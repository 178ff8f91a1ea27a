"""One update per width: each is the optimiser's own step, and one whose gradients are not finite changes nothing."""

import copy
from dataclasses import replace

import pytest
import torch
from lightning_fabric import Fabric

from us3l.data.sources import ImageSet, load
from us3l.training.recipes import MINI, Network, Optimiser
from us3l.training.run_config import Machine
from us3l.training.trainer import Trainer

APART = replace(
    MINI,
    network=Network("vit_tiny", base=12, heads=1, depth=1, patch=4),
    objective=replace(MINI.objective, hidden=16, predictor=16, dim=8, max_first=False, update="per-width"),
    views=replace(MINI.views, size=8),
    batch_size=8,
    max_steps=6,
)
ALGORITHMS = pytest.mark.parametrize("algorithm", ["sgd", "lars", "adamw"])


@pytest.fixture(scope="module")
def images() -> ImageSet:
    return load("digits", "train", limit=32)


def trainer(images, algorithm, machine=None) -> Trainer:
    optimiser = Optimiser(algorithm, lr={"sgd": 0.05, "lars": 5.0, "adamw": 0.01}[algorithm])
    return Trainer(replace(APART, optimiser=optimiser), images, Fabric(accelerator="cpu"), machine)


class Replayed:
    """The three optimisers from their formulas; a memory of `momentum` for each parameter."""

    def __init__(self, algorithm, momentum):
        self.algorithm, self.momentum, self.memory = algorithm, momentum, {}

    def step(self, name, weight, gradient, lr):
        if self.algorithm == "adamw":
            m, v, t = self.memory.get(name, (0.0, 0.0, 0))
            m, v, t = self.momentum * m + (1 - self.momentum) * gradient, 0.999 * v + 0.001 * gradient**2, t + 1
            self.memory[name] = m, v, t
            return weight - lr * (m / (1 - self.momentum**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-8)
        if self.algorithm == "lars" and weight.ndim > 1:
            norms = weight.norm(), gradient.norm()
            gradient = gradient * (0.001 * norms[0] / (norms[1] + 1e-8) if min(norms) > 0 else 1.0)
        velocity = gradient + (self.momentum * self.memory[name] if name in self.memory else 0.0)
        self.memory[name] = velocity
        return weight - lr * velocity


@ALGORITHMS
def test_each_width_has_a_step_of_its_own(images, algorithm):
    """Replay all gradients by the optimisers' formulas, with one memory for all widths."""
    ours = trainer(images, algorithm)
    names = {parameter: name for name, parameter in ours.learner.named_parameters() if parameter.requires_grad}
    steps = []
    ours.optimiser.optimizer.register_step_pre_hook(  # after that of weight decay
        lambda *_: steps.append({names[p]: (p.detach().clone(), p.grad.clone()) for p in names if p.grad is not None})
    )
    replayed = Replayed(algorithm, 0.9)
    for step in range(3):
        steps.clear()
        lr = ours.learning_rate(step)
        ours.train_step()
        assert len(steps) == len(ours.widths(step)) == 3
        weights = {name: before for gradients in reversed(steps) for name, (before, _) in gradients.items()}
        for gradients in steps:
            for name, (before, gradient) in gradients.items():
                torch.testing.assert_close(weights[name], before, rtol=1e-4, atol=1e-6)
                weights[name] = replayed.step(name, before, gradient, lr)
        for name, parameter in ours.learner.named_parameters():
            if name in weights:
                torch.testing.assert_close(weights[name], parameter.detach(), rtol=1e-4, atol=1e-6)


@ALGORITHMS
def test_a_bad_step_of_a_sub_network_changes_nothing(images, algorithm, monkeypatch):
    ours = trainer(images, algorithm, Machine("cpu", skip_bad_steps=1))
    ours.train_step()
    seen = []

    def sound():
        seen.append(copy.deepcopy(ours.state()))
        return torch.tensor(len(seen) < 2)  # the base network's step is good, those that follow are not

    monkeypatch.setattr(ours, "finite_gradients", sound)
    assert ours.train_step().left_out
    after = ours.state()
    for part in ("learner", "optimiser"):
        torch.testing.assert_close(after[part], seen[1][part], rtol=0, atol=0)
