"""Channels in order: width 1 computes the same, and the leading channels are those that matter."""

import pytest
import torch
from torch import nn

import us3l
from us3l.families import BACKBONES
from us3l.families.family import Family
from us3l.sorting import places_of, sort_channels
from us3l.system.errors import UserError
from us3l.tensors import tensors_of

SMALL = {
    "resnet18": {"stem": "cifar", "base": 8},
    "resnet50": {"stem": "cifar", "base": 8},
    "mobilenet_v2": {"stem": "cifar", "base": 16},
    "efficientnet_b0": {"stem": "cifar", "base": 16},
    "convnext_atto": {"stem": "cifar", "base": 16},
    "convnext_tiny": {"stem": "cifar", "base": 8},
    "vit_tiny": {"image_size": 8, "patch": 4, "depth": 2, "base": 16},
    "vit_small": {"image_size": 8, "patch": 4, "depth": 2, "base": 16, "heads": 4, "pool": "mean"},
}
OUTPUTS = {"resnet18": "layer4", "resnet50": "layer4", "vit_tiny": "stream", "vit_small": "stream"}
OUTPUTS |= dict.fromkeys(("convnext_atto", "convnext_tiny"), "stage3")


def unordered(name: str, **options: object) -> us3l.Slimmable:
    """A network whose every number is its own, batch-norm statistics included."""
    torch.manual_seed(0)
    net = us3l.create(name, **SMALL[name], **options).double()
    for tensor in tensors_of(net.full).values():
        tensor.data += 0.1 * torch.randn_like(tensor)
    us3l.calibrate(net, torch.randn(32, 3, 8, 8).double(), [1.0])
    for kept in net.calibrations:
        for tensor in kept.statistics.values():
            tensor *= 0.75 + 0.5 * torch.rand_like(tensor)
    return net.eval()


@pytest.mark.parametrize("images", [None, torch.randn(8, 3, 8, 8, dtype=torch.float64)], ids=["weights", "images"])
@pytest.mark.parametrize("name", BACKBONES)
def test_width_1_computes_the_same(name, images):
    seen = torch.randn(4, 3, 8, 8, dtype=torch.float64)
    for classes in (0, 5):
        net = unordered(name, num_classes=classes)
        before, narrow = net(seen), net.min_width
        old = {key: tensor.clone() for key, tensor in tensors_of(net.full).items()}
        orders = sort_channels(net, images)
        order = orders.get(OUTPUTS.get(name, ""))
        expected = before if classes or order is None else before[:, order]
        torch.testing.assert_close(net(seen), expected, rtol=1e-6, atol=1e-6)
        assert net.calibrated(1.0)
        assert not net.calibrated(narrow) or name.startswith(("vit", "convnext"))
        # Everything that narrow widths have less of was moved, but for the fixed axes of inputs and outputs.
        still = {key for key, tensor in tensors_of(net.full).items() if torch.equal(tensor, old[key])}
        slim = {key for key, tensor in tensors_of(net.skeleton(narrow)).items() if tensor.shape != old[key].shape}
        assert not still & slim


@pytest.mark.parametrize("name", BACKBONES)
def test_every_axis_that_slims_is_named(name):
    """Else a channel would be cut that was never looked at."""
    net = us3l.create(name, **SMALL[name], num_classes=5)
    named = {(place.name, place.axis) for found in places_of(net).values() for place in found}
    narrow = tensors_of(net.skeleton(net.min_width))
    for key, tensor in tensors_of(net.full).items():
        for axis, (small, large) in enumerate(zip(narrow[key].shape, tensor.shape, strict=True)):
            assert small == large or (key, axis) in named, (key, axis)


class Pair(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, hidden, bias=False), nn.Linear(hidden, 2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x))


class PairFamily(Family):
    def __call__(self, width: float) -> nn.Module:
        return Pair(round(4 * width))

    def channels(self, name):
        return ("hidden", None) if name.startswith("first") else (None, "hidden")


def test_the_important_channels_come_first():
    net = us3l.Slimmable(PairFamily())
    with torch.no_grad():
        net.full.first.weight.copy_(torch.tensor([[3.0, 0, 0], [0, 1, 0], [0, 0, 2], [0, 0, 0]]))
        net.full.last.weight.copy_(torch.tensor([[0.0, 1, 2, 3], [1, 0, 0, 0]]))
    assert sort_channels(net)["hidden"].tolist() == [3, 2, 0, 1]  # 9, 4, 1, 1: by what the last layer makes of them
    images = torch.randn(1000, 3)
    assert net.full.last.weight[0].tolist() == [3, 2, 0, 1]
    # On images, the first of these has no variance, and the others have 4 * 4, 9 * 1 and 1 * 1.
    assert sort_channels(net, images)["hidden"].tolist() == [1, 2, 3, 0]


def test_switchable_norms_follow():
    torch.manual_seed(0)
    net = us3l.create("resnet18", stem="cifar", base=8, switchable=[0.5, 1.0])
    for tensor in net.parameters():
        tensor.data += torch.rand_like(tensor)
    sort_channels(net)
    weight = net.full.get_parameter("bn1.weight")
    torch.testing.assert_close(net.norms.of(0.5)["bn1.weight"], weight[: len(net.norms.of(0.5)["bn1.weight"])])


def test_families_that_contradict_themselves_are_refused():
    family = PairFamily()
    family.channels = lambda _: ("all", "all")  # type: ignore[method-assign]
    with pytest.raises(UserError, match=r"'all' are not equally many everywhere: first.weight 4, first.weight 3"):
        sort_channels(us3l.Slimmable(family))


def test_a_network_without_names_stays_as_it_is():
    net = us3l.Slimmable(lambda width: nn.Linear(4, round(8 * width)))
    before = net.full.weight.clone()
    assert sort_channels(net) == {}
    assert torch.equal(net.full.weight, before)
