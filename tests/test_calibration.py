import copy

import pytest
import torch
from torch import nn

import us3l
from us3l.calibration import regroup
from us3l.families.resnet import BasicBlock
from us3l.tensors import batch_norms


def mini():
    torch.manual_seed(0)
    return us3l.create("resnet18", stem="cifar", base=8)


def statistics(net, width):
    return net.statistics(width)


def assert_same(one, other, **tolerance):
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], **tolerance)


def test_one_batch_gives_its_own_mean_and_variance():
    net = mini()
    images = torch.randn(64, 3, 8, 8)
    us3l.calibrate(net, images, widths=[0.5], batch_size=64)
    inputs = {}
    network = net.carve(0.5)
    for norm in batch_norms(network).values():
        norm.train()
    for name, norm in batch_norms(network).items():
        norm.register_forward_pre_hook(lambda _, x, name=name: inputs.update({name: x[0].detach()}))
    network(images)
    for name, x in inputs.items():
        torch.testing.assert_close(
            statistics(net, 0.5)[f"{name}.running_mean"], x.mean((0, 2, 3)), rtol=1e-5, atol=1e-6
        )
        torch.testing.assert_close(statistics(net, 0.5)[f"{name}.running_var"], x.var((0, 2, 3)), rtol=1e-4, atol=1e-6)


def test_statistics_are_the_weighted_average_over_batches():
    net = us3l.Slimmable(lambda width: nn.Sequential(nn.BatchNorm2d(round(4 * width))))
    images = torch.randn(10, 4, 3, 3) * torch.arange(1, 11).view(-1, 1, 1, 1)
    us3l.calibrate(net, images, widths=[1.0], batch_size=4)
    parts = images.split(4)  # 4, 4 and 2 images
    mean = sum(len(part) / 10 * part.mean((0, 2, 3)) for part in parts)
    variance = sum(len(part) / 10 * part.var((0, 2, 3)) for part in parts)
    torch.testing.assert_close(statistics(net, 1.0)["0.running_mean"], mean)
    torch.testing.assert_close(statistics(net, 1.0)["0.running_var"], variance)


@pytest.mark.parametrize("batch", [1, 7, 16, 40])
def test_the_loaders_batches_do_not_matter(batch):
    images = torch.randn(40, 3, 8, 8)
    nets = [mini(), mini()]
    us3l.calibrate(nets[0], images, widths=[0.25, 1.0], batch_size=16)
    pairs = [(part, torch.zeros(len(part))) for part in images.split(batch)]
    us3l.calibrate(nets[1], pairs, widths=[0.25, 1.0], batch_size=16)
    for width in (0.25, 1.0):
        assert_same(statistics(nets[0], width), statistics(nets[1], width), rtol=0, atol=0)


def test_calibrating_again_starts_anew_and_changes_no_weight():
    net = mini()
    weights = {name: p.clone() for name, p in net.full.named_parameters()}
    images = torch.randn(16, 3, 8, 8)
    us3l.calibrate(net, images, widths=[0.5])
    first = dict(statistics(net, 0.5))
    us3l.calibrate(net, images + 3, widths=[0.5])
    us3l.calibrate(net, images, widths=[0.5])
    assert_same(first, statistics(net, 0.5), rtol=0, atol=0)
    assert all(torch.equal(weights[name], p) for name, p in net.full.named_parameters())
    assert net.training


def test_every_distinct_width_by_default():
    net = mini()
    us3l.calibrate(net, torch.randn(4, 3, 8, 8))
    assert all(net.calibrated(width) for width in [*net.widths, 0.37, 0.61])


def test_norms_that_keep_no_statistics_are_left_alone():
    net = us3l.Slimmable(
        lambda width: nn.Sequential(nn.BatchNorm2d(4, track_running_stats=False), nn.Conv2d(4, round(8 * width), 1))
    )
    images = torch.randn(8, 4, 3, 3)
    us3l.calibrate(net, images, widths=[0.5])
    torch.testing.assert_close(net.at(0.5)(images), net(images, width=0.5))


def test_too_few_images():
    with pytest.raises(us3l.UserError, match="at least two images"):
        us3l.calibrate(mini(), torch.randn(1, 3, 8, 8), widths=[0.5])
    with pytest.raises(us3l.UserError, match="at least two images"):
        us3l.calibrate(mini(), [], widths=[0.5])


def test_regroup():
    def sizes(total, batch, size):
        return [len(part) for part in regroup(torch.arange(total).split(batch), size)]

    assert sizes(10, 3, 4) == [4, 4, 2]
    assert sizes(9, 2, 4) == [4, 4]  # a single image left over would have no variance
    assert sizes(1, 1, 4) == [1]
    assert sizes(8, 8, 4) == [4, 4]
    assert torch.equal(torch.cat(list(regroup(torch.arange(10).split(3), 4))), torch.arange(10))


@pytest.mark.parametrize("switchable", [None, (0.25, 0.5, 1.0)])
@pytest.mark.parametrize("backbone", ["resnet18", "resnet50", "mobilenet_v2"])
def test_all_widths_together_are_each_alone(backbone, switchable):
    torch.manual_seed(0)
    base = 8 if backbone == "resnet50" else 16  # it has four times the channels
    least = 0.25 if switchable else 0.7
    together = us3l.create(backbone, stem="cifar", base=base, switchable=switchable, min_width=least)
    alone = copy.deepcopy(together)
    images = torch.randn(20, 3, 8, 8)
    seen = []
    us3l.calibrate(together, images, batch_size=12, progress=seen.append)
    assert sum(seen) == 20 * len(together.widths)
    for width in alone.widths:
        us3l.calibrate(alone, images, width, batch_size=12)
        assert_same(statistics(together, width), statistics(alone, width), rtol=0, atol=0)


def test_what_networks_share_is_computed_once(monkeypatch):
    net = mini()
    signatures = [net.signature(width) for width in net.widths]
    # The channels of the stem and of four stages, each with two blocks.
    shared = [len({signature[: 3 + 2 * stage] for signature in signatures}) for stage in range(4)]
    assert shared[0] < shared[3] == len(signatures)
    calls = []
    forward = BasicBlock.forward
    monkeypatch.setattr(BasicBlock, "forward", lambda block, x: calls.append(block) or forward(block, x))
    us3l.calibrate(net, torch.randn(4, 3, 8, 8))
    assert len(calls) == 2 * sum(shared)


@pytest.mark.parametrize("backbone", ["resnet18", "resnet50", "mobilenet_v2"])
def test_the_chain_of_a_family_is_its_network(backbone):
    for stem in ("cifar", "imagenet"):
        net = us3l.create(backbone, stem=stem, base=16)
        us3l.calibrate(net, torch.randn(8, 3, 32, 32), 0.5)
        network = net.carve(0.5)
        x = images = torch.randn(2, 3, 32, 32)
        for module in net.family.chain(network):  # type: ignore[attr-defined]
            x = module(x)
        torch.testing.assert_close(x.mean((2, 3)), network(images))
        assert len(batch_norms(network)) == sum(len(batch_norms(part)) for part in net.family.chain(network))  # type: ignore[attr-defined]


class Chained:
    """A family of hand-written networks, whose second layer has a width of its own."""

    def __init__(self, second: type[nn.Module]) -> None:
        self.second = second

    def __call__(self, width):
        channels = round(4 * width)
        return nn.Sequential(nn.BatchNorm2d(3), self.second(channels), nn.BatchNorm2d(channels))

    def chain(self, network):
        return list(network)


class Leading(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(channels, 1, 1))

    def forward(self, x):
        return x[:, :1] * self.scale


class InPlace(Leading):
    def forward(self, x):
        return super().forward(x.mul_(2))


def test_modules_that_change_their_input_are_refused():
    images = torch.randn(8, 3, 4, 4)
    us3l.calibrate(us3l.Slimmable(Chained(Leading)), images)
    with pytest.raises(us3l.UserError, match="InPlace, in the family's chain, changes its input in place"):
        us3l.calibrate(us3l.Slimmable(Chained(InPlace)), images)
    us3l.calibrate(us3l.Slimmable(Chained(InPlace)), images, 0.5)  # nobody else needs it


def test_a_chain_must_have_every_batch_norm():
    family = Chained(Leading)
    family.chain = lambda network: list(network)[:2]
    with pytest.raises(us3l.UserError, match="lacks the batch norm '2'"):
        us3l.calibrate(us3l.Slimmable(family), torch.randn(8, 3, 4, 4))
