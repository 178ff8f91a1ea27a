"""Which arithmetic a run gets, and scaled gradients, which float16 needs."""

from dataclasses import replace

import pytest
import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins import MixedPrecision

from us3l.run import Run
from us3l.training import loop
from us3l.training.recipes import MINI, Network, Optimiser
from us3l.training.run_config import Machine, RunConfig, config_of
from us3l.training.trainer import Trainer

TINY = replace(
    MINI,
    network=Network(base=8),
    objective=replace(MINI.objective, hidden=16, predictor=16, dim=8, queue=32, max_first=False, samples=2),
    optimiser=Optimiser(lr=0.05),
    views=replace(MINI.views, size=8),
    batch_size=16,
    epochs=1,
    max_steps=3,
    calibration=16,
)


class Scaled(MixedPrecision):
    """Scaled gradients in 32 bits: on a CPU, Fabric has no scaled ones, and some lack float16."""

    def __init__(self, scale: float) -> None:
        super().__init__("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=2))
        self._desired_input_dtype = torch.float32

    def forward_context(self):
        return torch.autocast("cpu", enabled=False)


def new_trainer(images, recipe, *plugins) -> Trainer:
    return Trainer(recipe, images, Fabric(accelerator="cpu", plugins=list(plugins)))


@pytest.mark.parametrize("changes", [{}, {"update": "per-width"}])
def test_scaled_gradients_make_the_same_steps(changes, tiny_digits):
    recipe = replace(TINY, objective=replace(TINY.objective, **changes))
    scaled = new_trainer(tiny_digits, recipe, Scaled(2.0**10))  # a power of two changes no digit
    plain = new_trainer(tiny_digits, recipe)
    for _ in range(3):
        torch.testing.assert_close(scaled.train_step().losses, plain.train_step().losses)
    for ours, theirs in zip(scaled.learner.parameters(), plain.learner.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_scale_that_is_too_high_falls_and_comes_back_with_the_checkpoint(tiny_digits):
    trainer = new_trainer(tiny_digits, TINY, Scaled(2.0**127))
    before = [parameter.clone() for parameter in trainer.learner.net.parameters()]
    trainer.train_step()
    assert all(map(torch.equal, before, trainer.learner.net.parameters()))  # the step was left out, weight decay too
    scale = trainer.state()["precision"]["scale"]
    assert scale < 2.0**127
    resumed = new_trainer(tiny_digits, TINY, Scaled(1.0))
    resumed.load_state(trainer.state())
    assert resumed.state()["precision"]["scale"] == scale


def test_a_run_gets_the_precision_of_its_device_and_keeps_it(tmp_path, tiny_digits, monkeypatch):
    monkeypatch.setattr("us3l.training.run_config.precision_here", lambda *_, **__: "bf16-mixed")
    config = RunConfig("digits", replace(TINY, max_steps=1), Machine("cpu", calibrated_widths=(1.0,)))
    loop.train(config, Run(tmp_path / "run"), lambda: tiny_digits)
    assert config_of(Run(tmp_path / "run")).machine.precision == "bf16-mixed"
    assert " in bf16-mixed" in Run(tmp_path / "run").log.read_text()


def test_a_precision_that_was_asked_for_stays(monkeypatch):
    asked = []

    def here(accelerator):
        asked.append(accelerator)
        return "16-mixed"

    monkeypatch.setattr("us3l.training.run_config.precision_here", here)
    assert Machine(precision="32-true").resolved().precision == "32-true"
    assert Machine(accelerator="cuda").resolved().precision == "16-mixed"
    assert asked == ["cuda"]
