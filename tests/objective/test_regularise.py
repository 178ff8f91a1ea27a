import pytest
import torch
from torch import nn

import us3l
from us3l.objective.regularise import GroupDecay, group_of


def naive_rates(channels, decay, groups, alpha):
    size = channels // groups
    return [decay * (1 - min(k // size, groups - 1) * alpha) for k in range(channels)]


@pytest.mark.parametrize("channels", [8, 16, 64, 67, 71, 512])
def test_groups_are_those_of_equation_5_and_the_last_takes_the_rest(channels):
    rates = 1e-4 * (1 - 0.05 * group_of(channels, 8))
    torch.testing.assert_close(rates, torch.tensor(naive_rates(channels, 1e-4, 8, 0.05)))
    assert (rates == rates.max()).sum() == channels // 8
    assert torch.isclose(rates[-1], torch.tensor(1e-4 * (1 - 7 * 0.05)))


def test_fewer_channels_than_groups():
    assert group_of(3, 8).tolist() == [0, 1, 2]


def test_the_added_gradient_is_that_of_the_penalty():
    net = nn.Sequential(nn.Conv2d(3, 19, 3), nn.BatchNorm2d(19), nn.Flatten(), nn.Linear(19, 4))
    lam, groups, alpha = 0.01, 4, 0.1
    penalty = torch.zeros(())
    for parameter in net.parameters():
        own = alpha if parameter.ndim != 2 else 0.0
        for k, group in enumerate(group_of(len(parameter), groups)):
            penalty = penalty + lam * (1 - group * own) * parameter[k].square().sum()
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
    decay.add_to_gradients()  # nothing has a gradient yet, as a head that took no part in a step
    assert net.weight.grad is None
    for module in (net, head, teacher):
        for parameter in module.parameters():
            parameter.data.fill_(1.0)
            parameter.grad = torch.zeros_like(parameter)
    decay.add_to_gradients()
    expected = 1 - 0.1 * group_of(16, 8)
    torch.testing.assert_close(net.weight.grad[:, 0, 0, 0], expected)
    torch.testing.assert_close(net.bias.grad, expected)
    assert (head.weight.grad == 1).all()
    assert (teacher.weight.grad == 0).all()


def test_alpha_can_be_lowered_for_a_ramp():
    net = nn.Conv1d(1, 16, 1)
    net.weight.data.fill_(1.0)
    for share in (0.0, 0.25, 1.0):
        net.weight.grad = torch.zeros_like(net.weight)
        GroupDecay(net, net, 0.5, 8, 0.1).add_to_gradients(share)
        torch.testing.assert_close(net.weight.grad.flatten(), 0.5 * (1 - share * 0.1 * group_of(16, 8)))


def test_without_alpha_shrinking_is_the_weight_decay_of_adamw():
    torch.manual_seed(0)
    nets = [nn.Linear(5, 4) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    plain = torch.optim.AdamW(nets[0].parameters(), lr=0.1, weight_decay=0.3)
    ours = torch.optim.AdamW(nets[1].parameters(), lr=0.1, weight_decay=0.0)
    decay = GroupDecay(nets[1], nets[1], 0.3, 8, 0.0)
    for _ in range(3):
        inputs = torch.randn(4, 5)
        for net, optimiser in zip(nets, (plain, ours), strict=True):
            optimiser.zero_grad()
            net(inputs).square().mean().backward()
            if optimiser is ours:
                decay.shrink(0.1)
            optimiser.step()
    torch.testing.assert_close(nets[0].weight, nets[1].weight)


def test_shrinking_follows_the_groups():
    net = nn.Conv1d(1, 16, 1, bias=False)
    net.weight.data.fill_(1.0)
    net.weight.grad = torch.zeros_like(net.weight)
    GroupDecay(net, net, 0.5, 8, 0.1).shrink(0.1)
    torch.testing.assert_close(net.weight.detach().flatten(), 1 - 0.1 * 0.5 * (1 - 0.1 * group_of(16, 8)))
