"""Recipes: what a change of the objective brings with it."""

import pytest

from us3l.commands.main import main
from us3l.run.config import write_config
from us3l.training.recipes import CIFAR, MINI, named
from us3l.training.run_config import RunConfig, changed


@pytest.fixture
def configured(monkeypatch, tmp_path):
    """The recipe of a command line."""
    recipes = []

    def kept(config, run, *_):
        recipes.append(config.recipe.resolved())
        write_config(run.config_file, config)

    monkeypatch.setattr("us3l.training.loop.train", kept)

    def run(*arguments):
        out = str(tmp_path / f"run{len(recipes)}")
        assert main(["pretrain", "photos", "--out", out, "--recipe", "mini", *arguments]) == 0
        return recipes[-1]

    return run


def test_a_base_loss_brings_the_settings_of_its_method(configured):
    by_method, by_setting = configured("--method", "us3l-byol"), configured("--base-loss", "mse")
    assert by_setting == by_method
    assert by_setting.optimiser.lr == named("mini").optimiser.lr / 5
    assert changed(RunConfig("photos", named("mini")), base_loss="mse").recipe.resolved() == by_method.resolved()
    assert CIFAR.with_objective(base_loss="mse").optimiser == CIFAR.with_method("us3l-byol").optimiser


def test_what_is_given_stays(configured):
    told = configured("--base-loss", "mse", "--lr", "0.2", "--epochs", "7")
    assert (told.optimiser.lr, told.epochs) == (0.2, 7)
    assert told.optimiser.weight_decay == 5 * named("mini").optimiser.weight_decay
    same = configured("--base-loss", "infonce")
    assert (same.objective, same.optimiser, same.epochs) == (MINI.objective, MINI.optimiser, MINI.epochs)
