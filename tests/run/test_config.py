from dataclasses import replace

import pytest

from us3l.run.config import read_config, write_config
from us3l.system.errors import UserError
from us3l.training.recipes import RECIPES, named
from us3l.training.run_config import RunConfig
from us3l.training.run_networks import new_network


@pytest.mark.parametrize("name", RECIPES)
def test_a_configuration_comes_back_as_it_was(tmp_path, name):
    config = RunConfig("photos/", replace(named(name), max_steps=7, seed=3))
    write_config(tmp_path / "config.yaml", config)
    assert read_config(tmp_path / "config.yaml", RunConfig) == config


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("recipe: {epoch: 3}", "unknown setting 'epoch': did you mean 'epochs'"),
        ("recipe: {epochs: many}", "epochs: expected int, got 'many'"),
        ("recipe: {epochs: true}", "epochs: expected int, got True"),
        ("recipe: {epochs: 0}", "epochs=0 is too small"),
        ("recipe: {optimiser: {lr: fast}}", "lr: expected float"),
        ("recipe: {optimiser: {lr: -1}}", "lr=-1.0 must be positive"),
        ("recipe: {network: {stem: mars}}", "stem: expected 'auto' or 'cifar' or 'imagenet', got 'mars'"),
        ("recipe: {objective: {samples: 0}}", "samples=0 must be at least 1"),
        ("recipe: {objective: {alpha: 0.2}}", "alpha [*] groups = 1.6"),
        ("recipe: {views: {crop_scale: [0.2, 0.5, 1]}}", "crop_scale: expected 2 values"),
        ("machine: {checkpoint_every: 0}", "checkpoint_every=0 must be at least 1"),
        ("machine: {devices: -1}", "devices=-1"),
        ("machine: {compile: true, sync_bn: true}", "leave out `compile` or `sync_bn`"),
        ("recipe: [1, 2]", "recipe: expected Recipe"),
        ("data: 5", "data: expected str"),
        ("just a string", "expected RunConfig"),
        ("a: b: c", "cannot read"),
        ("!!python/object/apply:os.system ['true']", "cannot read"),
        ("", "expected RunConfig"),
    ],
)
def test_bad_configurations_are_explained(tmp_path, text, message):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=message) as error:
        read_config(path, RunConfig)
    assert "\n" not in str(error.value)


def test_numbers_as_people_write_them(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("recipe: {optimiser: {lr: 1, weight_decay: 1e-4}, max_steps: null, views: {crop_scale: [0.5, 1]}}")
    recipe = read_config(path, RunConfig).recipe
    assert (recipe.optimiser.lr, recipe.optimiser.weight_decay, recipe.max_steps) == (1.0, 1e-4, None)
    assert recipe.views.crop_scale == (0.5, 1.0)


def test_unknown_recipes_are_met_with_the_closest():
    with pytest.raises(UserError, match="did you mean 'cifar-resnet18'"):
        named("cifar-resnet81")


def test_the_stem_goes_by_the_size_of_the_images():
    mini = named("mini")
    large = replace(mini, views=replace(mini.views, size=96))
    assert (mini.resolved().network.stem, large.resolved().network.stem) == ("cifar", "imagenet")
    assert getattr(new_network(large).family, "stem", None) == "imagenet"
    asked = replace(large, network=replace(large.network, stem="cifar"))
    assert asked.resolved() == asked
    assert getattr(new_network(asked).family, "stem", None) == "cifar"
