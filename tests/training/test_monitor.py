from dataclasses import replace

import torch
from lightning_fabric import Fabric

from us3l.data.sources import load
from us3l.objective.losses import unit
from us3l.training.monitor import Monitor, change, spread, turn
from us3l.training.recipes import MINI, Network
from us3l.training.run_networks import new_networks
from us3l.training.trainer import Trainer


def test_spread_is_one_for_even_directions_and_zero_for_collapse():
    even = torch.randn(4000, 64, generator=torch.Generator().manual_seed(0))
    assert abs(spread(even) - 1) < 0.02
    assert spread(torch.ones(100, 64)) < 1e-6
    assert spread(torch.randn(100, 1) * torch.ones(100, 64)) > 0.9  # two opposite directions are no collapse
    nearly = torch.ones(100, 64) + 1e-3 * torch.randn(100, 64)
    assert spread(nearly) < 0.01
    for value in (float("nan"), float("inf")):
        even[7, 3] = value
        assert spread(even) == 0  # what is not finite is collapsed


RECIPE = replace(
    MINI,
    network=Network(base=8),
    objective=replace(MINI.objective, hidden=16, predictor=16, dim=8),
    views=replace(MINI.views, size=8),
    batch_size=16,
    max_steps=8,
)


def trainer(images, recipe=RECIPE):
    return Trainer(recipe, images, Fabric(accelerator="cpu"))


def test_gauges_of_each_width():
    digits = load("digits", limit=300)
    ours = trainer(digits)
    before = {name: tensor.clone() for name, tensor in ours.learner.state_dict().items()}
    generator = torch.get_rng_state()
    monitor = Monitor(ours)
    gauges = monitor.measure()
    assert gauges.keys() == {1.0, 0.75, 0.5, 0.25}
    assert all(20 < values["knn"] <= 100 and 0.1 < values["spread"] < 1.5 for values in gauges.values())
    again = monitor.measure()
    assert all(again[width]["knn"] == values["knn"] for width, values in gauges.items())
    assert all(torch.equal(before[name], tensor) for name, tensor in ours.learner.state_dict().items())
    assert torch.equal(generator, torch.get_rng_state())
    unlabelled = Monitor(trainer(replace(digits, labels=None, classes=None))).measure()
    assert unlabelled[0.5].keys() == {"spread", "rankme", "lidar", "agreement"}
    assert unlabelled[1.0].keys() == {"spread", "rankme", "lidar"}
    assert all(unlabelled[width][name] == gauges[width][name] for width in gauges for name in unlabelled[width])


def test_consistency_is_measured_from_the_second_time_on_and_after_a_resume():
    ours = trainer(load("digits", limit=300))
    monitor = Monitor(ours)
    assert not any("turn" in values for values in monitor.measure().values())
    # Nothing was trained and the views are those of the same step: guidance is as before.
    assert all(values["turn"] == values["change"] == 0 for width, values in monitor.measure().items() if width < 1)
    state = monitor.state()
    ours.train_step()
    gauges = monitor.measure()
    assert "turn" not in gauges[1.0]
    assert all(0 < gauges[width]["turn"] < 1.5 and 0 < gauges[width]["change"] <= 2 for width in (0.75, 0.5, 0.25))
    resumed = Monitor(ours)
    resumed.load_state(state)
    assert resumed.measure() == gauges


def test_networks_alone_have_no_sub_networks_to_guide():
    monitor = Monitor(trainer(load("digits", limit=300), RECIPE.with_method("byol")))
    monitor.measure()
    assert all("turn" not in values for values in monitor.measure().values())


def naive_turn(before, now):
    count = now.shape[1]
    pairs = {True: [], False: []}
    for v in range(len(now)):
        for i in range(count):
            for j in range(count):
                pairs[i == j].append((now[v, i] - before[v, j]).square().sum().item())
    return (sum(pairs[True]) / len(pairs[True])) / (sum(pairs[False]) / len(pairs[False]))


def test_turn_compares_an_image_with_itself_and_with_others():
    before, now = torch.randn(2, 2, 6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert abs(turn(before, now) - naive_turn(before, now)) < 1e-9
    assert turn(before, before) == 0
    collapsed = 1 + 1e-3 * torch.randn(2, 2, 200, 3, generator=torch.Generator().manual_seed(0))
    assert abs(turn(*collapsed) - 1) < 0.2


def test_change_under_a_rotation_is_what_equation_9_says():
    targets = unit(torch.randn(50, 3, generator=torch.Generator().manual_seed(0)))
    w = torch.linalg.qr(torch.randn(3, 3, generator=torch.Generator().manual_seed(1)))[0]
    expected = ((torch.eye(3) - w) @ targets.T).norm(dim=0).mean()
    assert abs(change(-targets[None], -(targets @ w.T)[None]) - expected) < 1e-5


def test_guidance_of_a_mixture_is_the_mixture():
    teacher = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 12))
    recipe = RECIPE.with_method("imitate")
    networks = replace(new_networks(recipe), pretrained_teacher=teacher)
    learner = Trainer(recipe, load("digits", limit=64), Fabric(accelerator="cpu"), networks=networks).learner
    views = torch.randn(1, 6, 3, 8, 8, generator=torch.Generator().manual_seed(0)).unbind()

    def guidance(features, relations):
        shares = {"teacher_features": features, "teacher_relations": relations}
        learner.objective = replace(recipe.objective, **shares)
        return learner.guidance(views, 0.5)

    alike, related = guidance(1.0, 0.0), guidance(0.0, 1.0)
    assert not torch.allclose(alike, related)
    torch.testing.assert_close(guidance(0.25, 0.75), 0.25 * alike + 0.75 * related)


def test_guidance_is_the_gradient_of_lemma_1():
    ours = trainer(load("digits", limit=64))
    images = ours.images.sample(10, torch.Generator().manual_seed(0)).images
    views = ours.random_views(images, torch.Generator().manual_seed(0))
    targets = [unit(target) for target in ours.learner.targets(views)["momentum_teacher"]]
    torch.testing.assert_close(ours.learner.guidance(views, 0.5), -torch.stack([targets[1], targets[0]]))
    nce = trainer(load("digits", limit=64), RECIPE.with_method("us-simclr"))
    found = nce.learner.guidance(views, 0.5)
    with torch.no_grad():
        base, sub = ([unit(z) for z in nce.learner.embed(views, width)] for width in (1.0, 0.5))
    shares = (sub[0] @ base[1].T / nce.recipe.objective.temperature).softmax(dim=1)
    torch.testing.assert_close(found[0], -base[1] + shares @ base[1], rtol=1e-4, atol=1e-5)
