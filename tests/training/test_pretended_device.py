"""Steps, gauges, calibration and evaluation with every tensor on a pretended device."""

from dataclasses import replace

import pytest
import torch
from lightning_fabric import Fabric

import us3l
from tests import pretended
from tests.pretended import DEVICE, MixedDevicesError, Pretended, PretendedDevice, WaitError
from us3l.evaluation import evaluate_frozen
from us3l.objective.learner import Learner
from us3l.seeds import seeded
from us3l.training.monitor import Monitor
from us3l.training.recipes import MINI, Network
from us3l.training.run import Machine
from us3l.training.trainer import Trainer

TINY = replace(
    MINI,
    network=Network(base=8),
    objective=replace(MINI.objective, hidden=16, predictor=16, dim=8, queue=32),
    views=replace(MINI.views, size=8, blur=0.5, solarise=0.2),
    batch_size=8,
    epochs=1,
)
METHODS = ["us3l", "us3l-byol", "us-simsiam", "simclr", "moco", "seed", "us-net", "s-net-distill"]
VIT = Network("vit_tiny", base=12, heads=1, depth=1, patch=4)


@pytest.fixture
def device():
    with PretendedDevice() as device:
        yield device


def new_trainer(recipe, images, machine=None) -> Trainer:
    return Trainer(recipe, images, pretended.fabric(), machine)


@pytest.mark.parametrize("name", [*METHODS, "us3l-mocov3"])
def test_a_step_neither_mixes_devices_nor_waits(device, name, tiny_digits, pretrained):
    recipe = replace(TINY.with_method(name), teacher=pretrained)
    if name == "us3l-mocov3":
        recipe = replace(recipe, network=VIT, optimiser=replace(recipe.optimiser, algorithm="adamw"))
    trainer = new_trainer(recipe, tiny_digits)
    for _ in range(3):
        with device.no_waits():
            done = trainer.train_step()
        assert all(isinstance(loss, Pretended) for loss in done.losses)
    assert all(isinstance(parameter, Pretended) for parameter in trainer.learner.parameters())
    assert Monitor(trainer).measure()


@pytest.mark.parametrize("changes", [{"update": "per-width"}, {"distill_loss": "nt-xent"}])
def test_nor_do_other_ways_to_compute_it(device, changes, tiny_digits):
    recipe = replace(TINY, objective=replace(TINY.objective, max_first=False, **changes))
    trainer = new_trainer(recipe, tiny_digits, Machine(accumulate=2, skip_bad_steps=3))
    with device.no_waits():
        for _ in range(2):
            trainer.train_step()
    assert int(trainer.skipped) == 0


SPOILERS = {
    "item": (lambda loss: loss * loss.detach().item(), WaitError),
    "cpu": (lambda loss: loss * loss.detach().cpu(), WaitError),
    "bool": (lambda loss: loss if loss > 0 else -loss, WaitError),
    "tolist": (lambda loss: loss + sum(loss.detach()[None].tolist()), WaitError),
    "a tensor made on the CPU": (lambda loss: (loss * torch.ones(2)).mean(), MixedDevicesError),
    "a copy that waits": (lambda loss: (loss * torch.ones(2).to(DEVICE)).mean(), WaitError),
    "an index on the CPU": (lambda loss: loss[None][torch.zeros(1, dtype=torch.long)].mean(), WaitError),
    "a mask": (lambda loss: loss[None][loss[None] == loss].mean(), WaitError),
}


@pytest.mark.parametrize("name", SPOILERS)
def test_what_does_not_belong_into_a_step_is_noticed(device, name, tiny_digits, monkeypatch):
    spoil, expected = SPOILERS[name]
    original = Learner.base_loss
    monkeypatch.setattr(Learner, "base_loss", lambda *arguments: spoil(original(*arguments)))
    trainer = new_trainer(TINY, tiny_digits)
    with pytest.raises(expected), device.no_waits():
        trainer.train_step()


@pytest.mark.usefixtures("device")
def test_the_values_are_those_of_the_cpu(tiny_digits):
    pretend = new_trainer(TINY, tiny_digits).train_step().losses[0].cpu()
    torch.testing.assert_close(pretend, Trainer(TINY, tiny_digits, Fabric(accelerator="cpu")).train_step().losses[0])


@pytest.mark.usefixtures("device")
def test_gauges_calibration_and_evaluation_do_not_mix_devices(tiny_digits):
    trainer = new_trainer(TINY, tiny_digits)
    trainer.train_step()
    assert all(0 <= gauges["knn"] <= 100 for gauges in Monitor(trainer).measure().values())
    net = trainer.learner.net
    images = trainer.preprocessing.apply(trainer.sample(32, seeded(0)).images)
    us3l.calibrate(net, images, [1.0, 0.5])
    network = net.at(0.5)
    assert isinstance(network(images), Pretended)
    found = evaluate_frozen(net, tiny_digits, tiny_digits, [1.0, 0.5], size=8, floor=False)
    assert all(0 <= result.knn <= 100 and 0 <= result.linear <= 100 for result in found.results)
