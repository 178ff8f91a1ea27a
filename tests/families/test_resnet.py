import subprocess
import sys

import pytest
import torch
import torchvision
from torch import nn
from torchvision.models.resnet import BasicBlock, Bottleneck

import us3l
from us3l.families.resnet import BLOCKS, Pointwise

pytestmark = pytest.mark.filterwarnings("ignore:width .* is not calibrated")


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_it_is_torchvisions_network_at_width_1(name):
    torch.manual_seed(0)
    theirs = getattr(torchvision.models, name)().eval()
    net = us3l.create(name, num_classes=1000)
    net.load_plain(theirs.state_dict())
    images = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(net.at(1.0)(images), theirs(images), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(net.train()(images), theirs.train()(images), rtol=1e-5, atol=1e-5)


class NarrowResNet(torchvision.models.ResNet):
    """Torchvision's ResNet with other channel counts, which its constructor does not take."""

    def __init__(self, block, blocks, channels, classes):
        self.channels = dict(zip((64, 128, 256, 512), channels, strict=True))
        super().__init__(block, blocks)
        self.fc = nn.Linear(channels[3] * block.expansion, classes)

    def _make_layer(self, block, planes, blocks, stride=1, dilate=False):
        if planes == 64:
            self.inplanes = self.channels[64]
            self.conv1 = nn.Conv2d(3, self.inplanes, 7, 2, 3, bias=False)
            self.bn1 = nn.BatchNorm2d(self.inplanes)
        return super()._make_layer(block, self.channels[planes], blocks, stride, dilate)


@pytest.mark.parametrize(
    ("name", "width"),
    [
        ("resnet18", 0.5),
        ("resnet18", 0.37),
        ("resnet18", (0.25, 0.5, 0.75, 1.0)),
        ("resnet50", 0.75),
        ("resnet50", 0.5),
        ("resnet50", 0.25),
    ],
)
def test_a_carved_network_is_torchvisions_of_those_channels(name, width):
    torch.manual_seed(0)
    net = us3l.create(name, num_classes=10)
    images = torch.randn(4, 3, 32, 32)
    us3l.calibrate(net, images, [width])
    kind = Bottleneck if name == "resnet50" else BasicBlock
    theirs = NarrowResNet(kind, BLOCKS[name], net.signature(width)[1::2], 10).eval()
    theirs.load_state_dict(net.carve(width).state_dict())
    torch.testing.assert_close(theirs(images), net.at(width)(images), rtol=1e-5, atol=1e-5)


def test_the_first_weights_are_drawn_as_in_torchvision():
    torch.manual_seed(0)
    theirs = torchvision.models.resnet18()
    torch.manual_seed(0)
    ours = us3l.create("resnet18", num_classes=1000)
    for name, parameter in ours.full.named_parameters():
        expected = theirs.get_parameter(name)
        assert abs(parameter.std(correction=0) - expected.std(correction=0)) < 0.1 * expected.std(correction=0) + 1e-6


@pytest.mark.parametrize(("name", "features"), [("resnet18", 512), ("resnet50", 2048)])
def test_features_and_stems(name, features):
    for stem, size in (("cifar", 16), ("imagenet", 64)):
        net = us3l.create(name, stem=stem)
        assert net(torch.randn(2, 3, size, size), width=0.5).shape == (2, features // 2)
    small = us3l.create(name, stem="cifar").skeleton(1.0)
    before_pooling = small.layer4(
        small.layer3(small.layer2(small.layer1(torch.empty(1, small.conv1.out_channels, 32, 32, device="meta"))))
    )
    assert before_pooling.shape[-1] == 4


def test_bad_choices_are_explained():
    with pytest.raises(us3l.UserError, match="did you mean 'resnet"):
        us3l.create("resnet81")
    with pytest.raises(us3l.UserError, match="unknown stem 'mars'"):
        us3l.create("resnet18", stem="mars")
    with pytest.raises(us3l.UserError, match="depth"):
        us3l.create("resnet18", depth=3)
    with pytest.raises(us3l.UserError, match="base=2"):
        us3l.create("resnet18", base=2)


STEP = """
import torch, us3l
torch.set_num_threads(1)
net = us3l.create("resnet18", stem="{stem}", base=16).train().to(memory_format=torch.channels_last)
images = torch.randn(4, 3, {size}, {size}).to(memory_format=torch.channels_last)
net(images, width=0.5).square().sum().backward()
"""


@pytest.mark.parametrize(("stem", "size"), [("cifar", 48), ("imagenet", 224)])
def test_narrow_networks_train_on_large_images(stem, size):
    """In a process of its own: the strided shortcut's backward pass crashed in oneDNN."""
    assert subprocess.run([sys.executable, "-c", STEP.format(stem=stem, size=size)], timeout=300).returncode == 0


@pytest.mark.parametrize(("stride", "size"), [(1, 49), (2, 49), (2, 48), (2, 8)])
def test_a_shortcut_is_a_strided_convolution(stride, size):
    ours, theirs = (kind(4, 6, 1, stride, bias=False) for kind in (Pointwise, nn.Conv2d))
    theirs.load_state_dict(ours.state_dict())
    images = torch.randn(2, 4, size, size)
    for mode in (True, False):
        torch.testing.assert_close(ours.train(mode)(images), theirs(images))
    ours.train()(images).square().sum().backward()
    theirs(images).square().sum().backward()
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad)
