from dataclasses import replace

import pytest
import torch
from lightning_fabric import Fabric

import us3l
from tests.made_runs import as_saved
from us3l.data.sources import ImageSet
from us3l.objective.heads import projector, read_projector, save_projector
from us3l.objective.losses import nt_xent, unit
from us3l.objective.methods import METHODS, method
from us3l.objective.sampling import lower_bound, sample_widths
from us3l.objective.spec import Objective
from us3l.paper.cases import case
from us3l.storage import read_tensors
from us3l.system.errors import UserError
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


VIT = Network("vit_tiny", base=12, heads=1, depth=1, patch=4, frozen_patches=False)
"""Quick; switchable norms are for ResNets only."""


def trainer(recipe: Recipe, images: ImageSet) -> Trainer:
    return Trainer(recipe, images, Fabric(accelerator="cpu"))


@pytest.mark.parametrize(
    ("name", "row"),
    [("us-simclr", "app-ablation/24"), ("us-simsiam", "app-ablation/3"), ("us-byol", "app-ablation/7")],
)
def test_us_net_baselines_are_rows_of_the_ablation_with_four_widths(name, row):
    recipe = MINI.with_method(name)
    assert recipe.objective.samples == 4
    assert recipe.with_objective(samples=3) == case(row).apply(MINI)


def test_us3l_on_byol_is_the_best_mse_row_with_the_strategies():
    strategies = {"max_first": True, "gradual": True, "alpha": 0.05}
    expected = case("app-ablation/8").apply(MINI).with_objective(**strategies)
    assert MINI.with_method("us3l-byol") == expected
    assert MINI.with_method("us3l") == MINI


WIDTHS_A_BATCH = dict.fromkeys(METHODS, 1)
WIDTHS_A_BATCH |= {"us3l": 3, "us3l-plus": 3, "us3l-byol": 3, "us3l-mocov3": 3, "imitate": 3, "us3l-imitate": 3}
WIDTHS_A_BATCH |= {name: 4 for name in METHODS if name.startswith(("us-", "s-net"))}


@pytest.mark.parametrize("name", METHODS)
def test_every_method_trains_what_it_should_and_resumes_exactly(name, tiny_digits, pretrained):
    recipe = replace(TINY.with_method(name), teacher=pretrained)
    if not recipe.network.switchable:
        recipe = replace(recipe, network=replace(VIT, individual=recipe.network.individual))
    whole = trainer(recipe, tiny_digits)
    before = {key: tensor.clone() for key, tensor in whole.learner.state_dict().items()}
    whole.train_step()
    whole.train_step()
    saved = as_saved(whole.state())
    whole.train_step()
    losses = whole.train_step().losses
    assert len(losses) == WIDTHS_A_BATCH[name]
    assert all(loss.isfinite() for loss in losses)
    same = {key for key, tensor in whole.learner.state_dict().items() if torch.equal(before[key], tensor)}
    taught = {key for key in before if key.startswith("pretrained_teacher.")}
    assert same == taught | {key for key in before if key.endswith("pos_embed")}
    assert bool(taught) == ("imitate" in name or name.startswith("seed"))
    assert all(p.grad is None for key, p in whole.learner.named_parameters() if key.startswith("teacher."))

    resumed = trainer(recipe, tiny_digits)
    assert all(torch.equal(tensor, before[key]) for key, tensor in resumed.learner.state_dict().items())
    resumed.load_state(saved)
    resumed.train_step()
    resumed.train_step()
    for key, tensor in whole.learner.state_dict().items():
        assert torch.equal(tensor, resumed.learner.state_dict()[key]), key


def test_methods_do_not_depend_on_what_the_recipe_was_before():
    for name in METHODS:
        once = MINI.with_method(name)
        again = MINI.with_method("us3l-mocov3").with_method("s-net").with_method(name)
        changing = {"temperature": once.objective.temperature}  # a recipe's, which MoCo v3 brings along
        assert replace(again.objective, **changing) == once.objective
        assert again.network == once.network
        assert (again.optimiser, again.epochs) == (once.optimiser, pytest.approx(once.epochs, abs=1))


def test_a_frozen_teacher_is_the_pretrained_network_with_its_projector(tiny_digits, pretrained):
    ours = trainer(replace(TINY.with_method("seed-mse"), teacher=pretrained), tiny_digits)
    assert ours.learner.projector[-1].out_features == 12  # as long as the teacher's embeddings
    images = torch.randn(6, 3, 8, 8)
    features = us3l.load(pretrained).at(1.0)(images)
    teacher = ours.learner.pretrained_teacher
    (taught,) = ours.learner.targets((images,))["pretrained_teacher"]
    torch.testing.assert_close(taught, teacher[1](features), rtol=1e-3, atol=1e-4)
    one_by_one = torch.cat([teacher(images[i : i + 1]) for i in range(6)])
    torch.testing.assert_close(taught, one_by_one, rtol=1e-3, atol=1e-4)  # fixed statistics: no image depends on others
    ours.learner.train()
    assert not teacher.training


@pytest.mark.parametrize(("name", "former"), [("imitate", "expert."), ("seed", "teacher.")])
def test_a_state_that_calls_a_pretrained_teacher_by_its_former_name(name, former, tiny_digits, pretrained):
    recipe = replace(TINY.with_method(name), teacher=pretrained)
    trained, resumed = trainer(recipe, tiny_digits), trainer(recipe, tiny_digits)
    trained.train_step()
    state = as_saved(trained.state())
    state["learner"] = {key.replace("pretrained_teacher.", former): tensor for key, tensor in state["learner"].items()}
    assert any(key.startswith(former) for key in state["learner"])
    resumed.load_state(state)
    for key, tensor in trained.learner.state_dict().items():
        assert torch.equal(tensor, resumed.learner.state_dict()[key]), key


def test_a_projector_keeps_the_statistics_of_its_features(tmp_path):
    torch.manual_seed(0)
    head, features = projector(10, 8, 6, final_norm=True), torch.randn(50, 10)
    expected = head(features)
    save_projector(tmp_path / "projector.safetensors", head, features)
    loaded = read_projector(read_tensors(tmp_path / "projector.safetensors"), "it").eval()
    # Batch norm divides by the biased variance while it trains, and keeps the unbiased one.
    torch.testing.assert_close(loaded(features), expected, rtol=0.05, atol=0.05)
    bad = read_tensors(tmp_path / "projector.safetensors") | {"3.bias": torch.zeros(3)}
    with pytest.raises(UserError, match="it does not hold a projector"):
        read_projector(bad, "it")


def test_supervised_methods_need_labels(tiny_digits):
    with pytest.raises(UserError, match="no labels"):
        trainer(TINY.with_method("us-net"), replace(tiny_digits, labels=None, classes=None))


def test_self_supervised_steps_never_see_labels(tiny_digits):
    shuffled = replace(tiny_digits, labels=tiny_digits.labels.flip(0))
    for name, equal in (("us3l", True), ("us-net", False)):
        one, other = (trainer(TINY.with_method(name), images) for images in (tiny_digits, shuffled))
        assert torch.equal(torch.stack(one.train_step().losses), torch.stack(other.train_step().losses)) == equal


def test_an_individual_network_is_that_width_with_weights_of_its_own(tiny_digits, tmp_path):
    recipe = replace(TINY.with_method("byol"), network=Network(base=16, individual=0.37))
    ours = trainer(recipe, tiny_digits)
    net = ours.learner.net
    whole = us3l.create("resnet18", stem="cifar", base=16)
    assert net.widths == [1.0]
    assert us3l.cost(net, 1.0, size=8) == us3l.cost(whole, 0.37, size=8)
    # Its weights are drawn for its own size, not cut from a wider network.
    fan_out = net.full.layer4[0].conv2.weight[0, 0].numel() * net.full.layer4[0].conv2.out_channels
    assert abs(net.full.layer4[0].conv2.weight.std() / (2 / fan_out) ** 0.5 - 1) < 0.1
    for _ in range(4):
        assert len(ours.train_step().losses) == 1
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


def test_s_net_trains_norms_of_its_own_for_each_width(tiny_digits):
    recipe = TINY.with_objective(fixed_widths=(1.0, 0.5, 0.25))
    with pytest.raises(UserError, match="outside the range"):
        trainer(replace(recipe, network=Network(base=8, min_width=0.4)), tiny_digits)
    with pytest.raises(UserError, match="`fixed_widths`"):
        trainer(replace(TINY, network=Network(base=8, switchable=True)), tiny_digits)
    ours = trainer(replace(recipe, network=Network(base=8, switchable=True)), tiny_digits)
    assert ours.learner.net.widths == [0.25, 0.5, 1.0]
    before = [p.detach().clone() for p in ours.learner.net.norms.parameters()]
    assert before
    assert len(ours.train_step().losses) == 3
    after = list(ours.learner.net.norms.parameters())
    assert not any(torch.equal(old, new) for old, new in zip(before, after, strict=True))


def test_unknown_methods():
    with pytest.raises(UserError, match="did you mean 'us-simsiam'"):
        method("ussimsiam")


def test_seed_by_mse_predicts_the_other_view(tiny_digits, pretrained):
    """As in the authors' code: two views crossed, a predictor, cosine loss."""
    learner = trainer(replace(TINY.with_method("seed-mse"), teacher=pretrained), tiny_digits).learner
    views = torch.randn(6, 3, 8, 8), torch.randn(6, 3, 8, 8)
    loss, _ = learner(views, 1.0)
    p1, p2 = (unit(learner.h(z)) for z in learner.embed(views, 1.0))
    t1, t2 = map(unit, learner.targets(views)["pretrained_teacher"])
    torch.testing.assert_close(loss, -((p1 * t2).sum(1).mean() + (p2 * t1).sum(1).mean()) / 2)


def test_nt_xent_distillation_has_the_other_outputs_as_negatives(tiny_digits):
    learner = trainer(TINY.with_objective(distill_loss="nt-xent"), tiny_digits).learner
    views = torch.randn(6, 3, 8, 8), torch.randn(6, 3, 8, 8)
    _, targets = learner(views, 1.0)
    found, _ = learner(views, 0.5, targets)
    (z1, z2), (t1, t2) = (map(unit, map(learner.g, learner.embed(views, 0.5))), map(unit, targets["momentum_teacher"]))
    tau = learner.objective.temperature
    torch.testing.assert_close(found, (nt_xent(z1, t2, tau) + nt_xent(z2, t1, tau)) / 2, rtol=1e-4, atol=1e-5)


def test_alpha_may_jump_at_half_time(tiny_digits, monkeypatch):
    """As it does for ResNet-50 in the authors' code."""
    ours = trainer(TINY.with_objective(alpha_ramp=(0.5, 0.5)), tiny_digits)
    shares = []
    monkeypatch.setattr(ours.decay, "add_to_gradients", shares.append)
    for _ in range(ours.steps):
        ours.apply_decay()
        ours.step += 1
    assert shares == [0.0] * (ours.steps // 2) + [1.0] * (ours.steps - ours.steps // 2)
