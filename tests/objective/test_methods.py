from dataclasses import replace

import pytest
import torch
from lightning_fabric import Fabric

import us3l
from us3l.data.sources import ImageSet, load
from us3l.errors import UserError
from us3l.objective.methods import METHODS, method
from us3l.objective.sampling import lower_bound, sample_widths
from us3l.objective.spec import Objective
from us3l.paper.cases import case
from us3l.training.recipes import MINI, Network, Recipe
from us3l.training.trainer import Trainer

TINY = replace(
    MINI,
    network=Network(base=8),
    objective=replace(MINI.objective, hidden=16, predictor=16, dim=8),
    views=replace(MINI.views, size=8),
    batch_size=16,
    max_steps=4,
)


@pytest.fixture(scope="module")
def digits() -> ImageSet:
    return load("digits", limit=64)


def trainer(recipe: Recipe, images: ImageSet) -> Trainer:
    return Trainer(recipe, images, Fabric(accelerator="cpu"))


@pytest.mark.parametrize(
    ("name", "row"),
    [("us-simclr", "app-ablation/24"), ("us-simsiam", "app-ablation/3"), ("us-byol", "app-ablation/7")],
)
def test_us_net_baselines_are_rows_of_the_ablation_with_four_widths(name, row):
    recipe = MINI.with_objective(**method(name))
    assert recipe.objective.samples == 4
    assert recipe.with_objective(samples=3) == case(row).apply(MINI)


def test_us3l_on_byol_is_the_best_mse_row_with_the_strategies():
    strategies = {"max_first": True, "gradual": True, "alpha": 0.05}
    expected = case("app-ablation/8").apply(MINI).with_objective(**strategies)
    assert MINI.with_objective(**method("us3l-byol")) == expected
    assert MINI.with_objective(**method("us3l")) == MINI


@pytest.mark.parametrize("name", METHODS)
def test_every_method_trains_and_resumes_exactly(name, digits):
    recipe = TINY.with_objective(**method(name))
    whole = trainer(recipe, digits)
    before = {key: p.detach().clone() for key, p in whole.learner.named_parameters()}
    for _ in range(4):
        losses = whole.train_step()
    expected = {"us3l": 3, "us3l-byol": 3, "us-simclr": 4, "us-simsiam": 4, "us-byol": 4}
    assert len(losses) == expected.get(name, 1)
    assert all(loss.isfinite() for loss in losses)
    assert not {key for key, p in whole.learner.named_parameters() if torch.equal(before[key], p)}

    half = trainer(recipe, digits)
    half.train_step()
    half.train_step()
    state = half.state()
    resumed = trainer(recipe, digits)
    resumed.load_state(state)
    resumed.train_step()
    resumed.train_step()
    for one, other in zip(whole.learner.parameters(), resumed.learner.parameters(), strict=True):
        assert torch.equal(one, other)


def test_an_individual_network_is_that_width_with_weights_of_its_own(digits, tmp_path):
    recipe = replace(TINY.with_objective(**method("byol")), network=Network(base=16, individual=0.37))
    ours = trainer(recipe, digits)
    net = ours.learner.net
    whole = us3l.create("resnet18", stem="cifar", base=16)
    assert net.widths == [1.0]
    assert us3l.cost(net.skeleton(1.0), (3, 8, 8)) == us3l.cost(whole.skeleton(0.37), (3, 8, 8))
    # Its weights are drawn for its own size, not cut from a wider network.
    fan_out = net.full.layer4[0].conv2.weight[0, 0].numel() * net.full.layer4[0].conv2.out_channels
    assert abs(net.full.layer4[0].conv2.weight.std() / (2 / fan_out) ** 0.5 - 1) < 0.1
    for _ in range(4):
        assert len(ours.train_step()) == 1
    us3l.calibrate(net, torch.randn(8, 3, 8, 8))
    net.save(tmp_path / "model")
    loaded = us3l.load(tmp_path / "model")
    images = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(loaded.at(1.0)(images), net.at(1.0)(images))
    with pytest.raises(UserError, match=r"individual=1\.5"):
        us3l.create("resnet18", individual=1.5)


def test_a_fixed_list_of_widths():
    objective = Objective(fixed_widths=(0.5, 1.0, 0.25))
    assert all(sample_widths(objective, 0.25, step, 8, 0) == [1.0, 0.5, 0.25] for step in range(8))
    assert lower_bound(objective, 0.25, 0, 8) == 0.25
    for widths in ((), (0.5, 0.0), (1.5,)):
        with pytest.raises(UserError, match="fixed_widths"):
            Objective(fixed_widths=widths)


def test_s_net_trains_norms_of_its_own_for_each_width(digits):
    recipe = TINY.with_objective(fixed_widths=(1.0, 0.5, 0.25))
    with pytest.raises(UserError, match="outside the range"):
        trainer(replace(recipe, network=Network(base=8, min_width=0.4)), digits)
    with pytest.raises(UserError, match="--fixed-widths"):
        trainer(replace(TINY, network=Network(base=8, switchable=True)), digits)
    ours = trainer(replace(recipe, network=Network(base=8, switchable=True)), digits)
    assert ours.learner.net.widths == [0.25, 0.5, 1.0]
    before = [p.detach().clone() for p in ours.learner.net.norms.parameters()]
    assert before
    assert len(ours.train_step()) == 3
    after = list(ours.learner.net.norms.parameters())
    assert not any(torch.equal(old, new) for old, new in zip(before, after, strict=True))


def test_unknown_methods():
    with pytest.raises(UserError, match="did you mean us-simsiam"):
        method("ussimsiam")
