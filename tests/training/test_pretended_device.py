"""Steps, gauges, calibration and evaluation with every tensor on a pretended device."""

from dataclasses import replace

import pytest
import torch
from lightning_fabric import Fabric

import us3l
from tests import pretended
from tests.pretended import DEVICE, MixedDevicesError, Pretended, PretendedDevice, WaitError
from us3l.data.preprocessing import Preprocessing
from us3l.data.sources import find
from us3l.evaluation.frozen_features import evaluate_fast
from us3l.evaluation.gradient_descent import descend, evaluate_finetuned, evaluate_paper, new_head
from us3l.evaluation.prepare import prepare
from us3l.evaluation.protocols import finetuning
from us3l.objective.learner import Learner
from us3l.run import Run
from us3l.system.progress import SILENT
from us3l.system.seeds import seeded
from us3l.training import loop
from us3l.training.display import Display
from us3l.training.loggers import Recorder
from us3l.training.monitor import Monitor
from us3l.training.recipes import MINI, Network
from us3l.training.run_config import Machine, RunConfig
from us3l.training.trainer import Trainer

TINY = replace(
    MINI,
    network=Network(base=8),
    objective=replace(MINI.objective, hidden=16, predictor=16, dim=8, queue=32),
    views=replace(MINI.views, size=8, blur=0.5, solarise=0.2),
    batch_size=8,
    epochs=1,
)
VIT = Network("vit_tiny", base=12, heads=1, depth=1, patch=4)
"""Quick. Its heads have batch norms; switchable ones are for ResNets only."""
TRAINING = replace(finetuning(8), epochs=1, batch_size=32)


@pytest.fixture
def device():
    with PretendedDevice() as device:
        yield device


DIFFERENT = (
    "us3l", "us3l-mocov3", "us3l-imitate", "us-simsiam", "moco", "seed", "seed-mse", "s-net-distill", "us-net",
)  # fmt: skip
"""Methods that have every loss, head, target and optimiser between them."""


def new_trainer(recipe, images, machine=None) -> Trainer:
    return Trainer(recipe, images, pretended.fabric(), machine)


@pytest.mark.parametrize("name", DIFFERENT)
def test_a_step_neither_mixes_devices_nor_waits(device, name, tiny_digits, pretrained):
    recipe = TINY.with_method(name)
    if name != "us3l" and not recipe.network.switchable:
        recipe = replace(recipe, network=replace(VIT, individual=recipe.network.individual))
    if name == "us3l-mocov3":
        recipe = replace(recipe, optimiser=replace(recipe.optimiser, algorithm="adamw"))
    trainer = new_trainer(replace(recipe, teacher=pretrained), tiny_digits)
    trainer.step = trainer.steps // 2  # where sub-networks run, if there are any
    for _ in range(2):
        with device.no_waits():
            done = trainer.train_step()
        assert all(isinstance(loss, Pretended) for loss in done.losses)
        assert len(done.losses) > 1 or recipe.network.individual
    assert all(isinstance(parameter, Pretended) for parameter in trainer.learner.parameters())


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
    "a tensor made on the CPU": (lambda loss: (loss * torch.ones(2)).mean(), MixedDevicesError),
    "a copy that waits": (lambda loss: (loss * torch.ones(2).to(DEVICE)).mean(), WaitError),
    "an index on the CPU": (lambda loss: loss[None][torch.zeros(1, dtype=torch.long)].mean(), WaitError),
    "nonzero": (lambda loss: loss * len(loss[None].nonzero()), WaitError),
    "a mask": (lambda loss: loss[None][loss[None] == loss].mean(), WaitError),
}


@pytest.mark.parametrize("name", SPOILERS)
def test_what_does_not_belong_into_a_step_is_noticed(device, name, tiny_digits, monkeypatch):
    spoil, expected = SPOILERS[name]
    original = Learner.term_loss
    monkeypatch.setattr(Learner, "term_loss", lambda *arguments: spoil(original(*arguments)))
    trainer = new_trainer(replace(TINY, network=VIT), tiny_digits)
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
    rows = evaluate_fast(prepare(net, tiny_digits, tiny_digits, [1.0, 0.5], size=8)).rows
    assert all(0 <= row.percent(metric) <= 100 for row in rows for metric in ("knn", "linear"))


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("name", ["us-net", "seed"])
def test_nor_do_gauges_of_other_methods(name, tiny_digits, pretrained):
    recipe = TINY.with_method(name)
    recipe = replace(recipe, network=replace(VIT, individual=recipe.network.individual), teacher=pretrained)
    monitor = Monitor(new_trainer(recipe, tiny_digits))
    monitor.measure()
    assert all("spread" in gauges for gauges in monitor.measure().values())


def test_a_step_on_streamed_images(device, photos):
    """Processes hand over bytes; colours are changed on the device."""
    recipe = replace(TINY, network=VIT)
    trainer = new_trainer(recipe, find(photos, "all"))
    with device.no_waits():
        done = trainer.train_step()
    assert isinstance(done.losses[0], Pretended)
    Monitor(trainer).measure()


def test_a_run_waits_only_when_it_looks_at_losses_and_gauges_or_saves(device, tiny_digits, tmp_path, monkeypatch):
    fetched = []
    fetch = device.patient(loop.fetch)
    monkeypatch.setattr(loop, "fetch", lambda *given: fetched.append(given[1].step) or fetch(*given))
    monkeypatch.setattr(loop, "FETCH_EVERY", 2)
    monkeypatch.setattr(loop, "look", lambda *_: [])  # gauges, for which one waits
    monkeypatch.setattr(loop, "save_checkpoint", device.patient(loop.save_checkpoint))
    monkeypatch.setattr(Trainer, "state", device.patient(Trainer.state))
    config = RunConfig("digits", replace(TINY, network=VIT, max_steps=3))
    trainer, run = new_trainer(config.recipe, tiny_digits), Run(tmp_path / "run")
    run.start(config)
    display, monitor = Display(SILENT, None, [1.0] * trainer.steps, 0), Monitor(trainer)
    with device.no_waits():
        loop.run_steps(config, trainer, monitor, run, Recorder(run), display, lambda: False)
    assert fetched == [2, 3]  # now and then, and at the end


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(("evaluate", "measure"), [(evaluate_paper, "linear"), (evaluate_finetuned, "finetuned")])
def test_nor_do_classifiers(evaluate, measure, tiny_digits):
    net = new_trainer(replace(TINY, network=VIT), tiny_digits).learner.net
    (row,) = evaluate(prepare(net, tiny_digits, tiny_digits, [0.5], size=8), TRAINING).rows
    assert 0 <= row.percent(measure) <= 100


def test_classifiers_do_not_wait_within_an_epoch(device, tiny_digits, monkeypatch):
    net = new_trainer(replace(TINY, network=VIT), tiny_digits).learner.net
    looks = []
    monkeypatch.setattr(Pretended, "tolist", device.patient(lambda values: looks.append(1) or values.cpu().tolist()))
    network, images = net.carve(0.5), tiny_digits.to(DEVICE)
    head = new_head(network, 10, 8, seed=0)
    with device.no_waits():
        descend([(network, head)], list(head.parameters()), images, Preprocessing.usual(8), TRAINING, 0, None)
    assert looks == [1]
