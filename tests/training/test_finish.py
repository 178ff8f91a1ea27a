"""The end of a run: its model, and what a kill between two of its files leaves."""

import os
import shutil
from dataclasses import replace

import pytest
import torch
from lightning_fabric import Fabric

from us3l.data.preprocessing import Preprocessing
from us3l.data.sources import ImageSet, load
from us3l.run import Run
from us3l.run.checkpoints import load_checkpoint
from us3l.system.progress import SILENT
from us3l.system.seeds import seeded
from us3l.training import finish as finishing
from us3l.training import loop
from us3l.training.display import Display
from us3l.training.recipes import Network, named
from us3l.training.run_config import Machine, RunConfig
from us3l.training.trainer import Trainer

TINY = replace(
    named("digits"),
    network=Network(base=8),
    objective=replace(named("digits").objective, hidden=16, predictor=16, dim=8),
    views=replace(named("digits").views, size=8),
    batch_size=16,
    max_steps=4,
    images=64,
    calibration=16,
)
CONFIG = RunConfig("digits", TINY, Machine("cpu", calibrated_widths=(0.5, 1.0)))
FILES = ("weights.safetensors", "statistics.safetensors", "model.json")


def digits() -> ImageSet:
    return load("digits", "pretrain", limit=64)


def train(folder, resume=False) -> Run:
    loop.train(CONFIG, Run(folder), digits, resume)
    return Run(folder)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Run:
    return train(tmp_path_factory.mktemp("runs") / "whole")


def contents(run: Run) -> list[bytes]:
    return [path.read_bytes() for path in (run.projector, *(run.model / name for name in FILES))]


def test_the_model_has_the_last_weights_and_statistics_of_the_calibration_images(whole):
    learned = load_checkpoint(whole.checkpoints)[0]["learner"]
    assert all(torch.equal(tensor, learned[f"net.full.{name}"]) for name, tensor in whole.network.weights().items())
    narrow, seen = whole.network.carve(0.5), Preprocessing.usual(8)
    images = seen.apply(digits().sample(16, seeded(0), seen.resize).images)
    first = narrow.conv1(images)
    torch.testing.assert_close(narrow.bn1.running_mean, first.mean(dim=(0, 2, 3)))
    torch.testing.assert_close(narrow.bn1.running_var, first.transpose(0, 1).flatten(1).var(dim=1))


def test_a_kill_between_any_two_files_loses_nothing(whole, tmp_path, monkeypatch):
    """Die before each file of the model appears: the run is not finished, and a second try ends the same."""
    run = Run(tmp_path / "run")
    trainer = Trainer(TINY.resolved(), digits(), Fabric(accelerator="cpu"), CONFIG.machine)
    trainer.load_state(load_checkpoint(whole.checkpoints)[0])
    shutil.copytree(whole.checkpoints, run.checkpoints)
    shutil.copy(whole.config_file, run.config_file)
    replaced, moments = os.replace, []

    def finish(survivors):
        def die(source, target):
            if len(moments) == survivors:
                raise KeyboardInterrupt
            moments.append(target)
            replaced(source, target)

        moments.clear()
        monkeypatch.setattr(os, "replace", die)
        finishing.finish(trainer, run, Display(SILENT, None, [], 0))

    for survivors in range(4):
        with pytest.raises(KeyboardInterrupt):
            finish(survivors)
        assert not run.finished
        if survivors == 2:
            monkeypatch.undo()
            train(run.folder, resume=True)
        else:
            finish(4)
        assert run.finished
        assert contents(run) == contents(whole)
        shutil.rmtree(run.model)
        run.projector.unlink()
    finish(None)
    assert len(moments) == 4
