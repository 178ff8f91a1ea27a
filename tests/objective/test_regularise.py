import pytest
import torch
from torch import nn

import us3l
from us3l.objective.regularise import GroupDecay, decay_rates


def naive_rates(channels, decay, groups, alpha):
    size = channels // groups
    return [decay * (1 - min(k // size, groups - 1) * alpha) for k in range(channels)]


@pytest.mark.parametrize("channels", [8, 16, 64, 67, 71, 512])
def test_groups_are_those_of_equation_5_and_the_last_takes_the_rest(channels):
    rates = decay_rates(channels, 1e-4, 8, 0.05)
    torch.testing.assert_close(rates, torch.tensor(naive_rates(channels, 1e-4, 8, 0.05)))
    assert (rates == rates.max()).sum() == channels // 8
    assert torch.isclose(rates[-1], torch.tensor(1e-4 * (1 - 7 * 0.05)))


def test_fewer_channels_than_groups():
    torch.testing.assert_close(decay_rates(3, 1.0, 8, 0.1), torch.tensor([1.0, 0.9, 0.8]))


def test_the_added_gradient_is_that_of_the_penalty():
    net = nn.Sequential(nn.Conv2d(3, 19, 3), nn.BatchNorm2d(19), nn.Flatten(), nn.Linear(19, 4))
    lam, groups, alpha = 0.01, 4, 0.1
    penalty = torch.zeros(())
    for parameter in net.parameters():
        own = alpha if parameter.ndim != 2 else 0.0
        for k, rate in enumerate(decay_rates(len(parameter), lam, groups, own)):
            penalty = penalty + rate * parameter[k].square().sum()
    penalty.backward()
    expected = [p.grad.clone() for p in net.parameters()]
    for parameter in net.parameters():
        parameter.grad.zero_()
    GroupDecay(net, net, 2 * lam, groups, alpha).add_to_gradients()
    for parameter, gradient in zip(net.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def test_without_alpha_it_is_the_weight_decay_of_sgd():
    torch.manual_seed(0)
    nets = [us3l.create("resnet18", stem="cifar", base=8) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    plain = torch.optim.SGD(nets[0].parameters(), lr=0.1, momentum=0.9, weight_decay=5e-2)
    ours = torch.optim.SGD(nets[1].parameters(), lr=0.1, momentum=0.9)
    decay = GroupDecay(nets[1], nets[1].full, 5e-2, 8, 0.0)
    for _ in range(3):
        images = torch.randn(4, 3, 8, 8)
        for net, optimiser in zip(nets, (plain, ours), strict=True):
            optimiser.zero_grad()
            net(images, width=0.5).square().mean().backward()
            if optimiser is ours:
                decay.add_to_gradients()
            optimiser.step()
    for one, other in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


def test_only_the_network_is_grouped_and_only_what_trains_is_decayed():
    net, head, teacher = nn.Conv2d(3, 16, 1), nn.BatchNorm1d(16), nn.Conv2d(3, 16, 1).requires_grad_(False)
    decay = GroupDecay(nn.ModuleList([net, head, teacher]), net, 1.0, 8, 0.1)
    rates = {id(parameter): rate.flatten() for parameter, rate in decay.rates}
    assert set(rates) == {id(p) for m in (net, head) for p in m.parameters()}
    assert rates[id(net.weight)][-1] < 1
    assert (rates[id(head.weight)] == 1).all()
    decay.add_to_gradients()  # nothing has a gradient yet, as a head that took no part in a step
    assert net.weight.grad is None
