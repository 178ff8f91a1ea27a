import pytest
import torch
from torch import nn

import us3l
from us3l.objective.regularise import GroupDecay, group_of, output_channels, sliced_channels
from us3l.tensors import leading
from us3l.training.recipes import named


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
    GroupDecay(net, output_channels(net), 2 * lam, groups, alpha).add_to_gradients()
    for parameter, gradient in zip(net.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def test_without_alpha_it_is_the_weight_decay_of_sgd():
    torch.manual_seed(0)
    nets = [us3l.create("resnet18", stem="cifar", base=8) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    plain = torch.optim.SGD(nets[0].parameters(), lr=0.1, momentum=0.9, weight_decay=5e-2)
    ours = torch.optim.SGD(nets[1].parameters(), lr=0.1, momentum=0.9)
    decay = GroupDecay(nets[1], sliced_channels(nets[1]), 5e-2, 8, 0.0)
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
    decay = GroupDecay(nn.ModuleList([net, head, teacher]), output_channels(net), 1.0, 8, 0.1)
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
        GroupDecay(net, output_channels(net), 0.5, 8, 0.1).add_to_gradients(share)
        torch.testing.assert_close(net.weight.grad.flatten(), 0.5 * (1 - share * 0.1 * group_of(16, 8)))


def test_without_alpha_shrinking_is_the_weight_decay_of_adamw():
    torch.manual_seed(0)
    nets = [nn.Linear(5, 4) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    plain = torch.optim.AdamW(nets[0].parameters(), lr=0.1, weight_decay=0.3)
    ours = torch.optim.AdamW(nets[1].parameters(), lr=0.1, weight_decay=0.0)
    decay = GroupDecay(nets[1], output_channels(nets[1]), 0.3, 8, 0.0)
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
    GroupDecay(net, output_channels(net), 0.5, 8, 0.1).shrink(0.1)
    torch.testing.assert_close(net.weight.detach().flatten(), 1 - 0.1 * 0.5 * (1 - 0.1 * group_of(16, 8)))


def reached(net, grouped):
    """The share of the weights that learn and belong to a group."""
    learning = [p for p in net.full.parameters() if p.requires_grad]
    return sum(p.numel() for p in learning if p in grouped) / sum(p.numel() for p in learning)


@pytest.mark.parametrize("backbone", ["vit_tiny", "resnet18", "mobilenet_v2"])
def test_groups_reach_all_weights_that_are_sliced(backbone):
    options = {"image_size": 8, "patch": 4, "heads": 3, "depth": 1} if "vit" in backbone else {"stem": "cifar"}
    net = us3l.create(backbone, base=16, **options)
    grouped = sliced_channels(net)
    assert reached(net, grouped) > (0.94 if backbone == "mobilenet_v2" else 0.99)  # whose last layer has few inputs
    for name, parameter in net.full.named_parameters():
        if parameter in grouped:
            axis = grouped[parameter].axis
            assert net.skeleton(0.25).get_parameter(name).shape[axis] < parameter.shape[axis]


def test_a_group_is_the_channels_that_a_width_leaves_out():
    """Also where a tensor is made of segments: what the narrowest network has is decayed more than what it lacks."""
    net = us3l.create("vit_tiny", base=32, image_size=8, patch=4, heads=3, depth=1)
    decay = GroupDecay(net, sliced_channels(net), 1.0, 4, 0.25)
    full = dict(net.full.named_parameters())
    for name in ("blocks.0.attn.qkv.bias", "blocks.0.attn.qkv.weight"):  # 3 x 3 segments of 32 channels each
        groups = (decay.relief[full[name]] / 0.25).view(9 * 32, -1)[:, 0]
        assert groups.tolist() == group_of(32, 4).tolist() * 9
        # What the network of half the width has is the first two groups of each segment.
        half = leading(groups, net.skeleton(0.5).get_parameter(name).shape[:1], segments=[9])
        assert sorted(set(half.tolist())) == [0, 1]
    for name in ("blocks.0.attn.proj.weight", "blocks.0.mlp.fc1.weight", "cls_token", "norm.weight"):
        groups = (decay.relief[full[name]] / 0.25).expand_as(full[name])
        assert [int((groups == number).sum()) for number in range(4)] == [groups.numel() // 4] * 4


def test_an_individual_network_has_groups_too():
    """As in the paper's comparison, although nothing of it is ever sliced."""
    net = us3l.create("resnet18", stem="cifar", base=8, individual=1.0)
    assert sliced_channels(net) == output_channels(net.full)
    assert reached(net, sliced_channels(net)) == 1.0


def test_it_is_off_for_vits_as_in_the_authors_script():
    assert named("cifar-vit-tiny").objective.alpha == 0
    assert named("mini-cifar-vit-tiny").objective.alpha == 0
    assert named("cifar-resnet18").objective.alpha == 0.05
