import torch

import us3l
from us3l.data.sources import load
from us3l.objective.learner import Learner
from us3l.objective.spec import Objective
from us3l.training.monitor import Monitor, spread


def test_spread_is_one_for_even_directions_and_zero_for_collapse():
    even = torch.randn(4000, 64, generator=torch.Generator().manual_seed(0))
    assert abs(spread(even) - 1) < 0.02
    assert spread(torch.ones(100, 64)) < 1e-6
    assert spread(torch.randn(100, 1) * torch.ones(100, 64)) > 0.9  # two opposite directions are no collapse
    nearly = torch.ones(100, 64) + 1e-3 * torch.randn(100, 64)
    assert spread(nearly) < 0.01


def test_gauges_of_each_width():
    torch.manual_seed(0)
    learner = Learner(us3l.create("resnet18", stem="cifar", base=8), Objective(hidden=16, predictor=16, dim=8), 8)
    digits = load("digits", limit=300)
    before = {name: tensor.clone() for name, tensor in learner.state_dict().items()}
    monitor = Monitor(digits.images, digits.labels, 8, widths=(1.0, 0.5))
    gauges = monitor.measure(learner)
    assert gauges.keys() == {1.0, 0.5}
    assert all(30 < values["knn"] <= 100 and 0.1 < values["spread"] < 1.5 for values in gauges.values())
    assert gauges == monitor.measure(learner)
    assert all(torch.equal(before[name], tensor) for name, tensor in learner.state_dict().items())
    unlabelled = Monitor(digits.images, None, 8, widths=(0.5,)).measure(learner)
    assert unlabelled[0.5].keys() == {"spread"}
