import pytest
import torch
from torch import nn

import us3l


def closed_form_resnet18(c: list[int], size: int, classes: int) -> tuple[int, int]:
    """Params and MACs of a ResNet-18 with the ImageNet stem, layer by layer."""
    params, macs = 7 * 7 * 3 * c[0] + 2 * c[0], 7 * 7 * 3 * c[0] * (size // 2) ** 2
    side, inside = size // 4, c[0]
    for stage, out in enumerate(c):
        side = side // 2 if stage else side
        for block in range(2):
            layers = [(inside if block == 0 else out, 9), (out, 9)] + [(inside, 1)] * (stage > 0 and block == 0)
            for channels, kernel in layers:
                params += kernel * channels * out + 2 * out
                macs += kernel * channels * out * side**2
        inside = out
    return params + (inside + 1) * classes, macs + inside * classes


@pytest.mark.parametrize(
    ("width", "millions", "billions"), [(1.0, 11.69, 1.81), (0.75, 6.68, 1.04), (0.5, 3.06, 0.48), (0.25, 0.83, 0.14)]
)
def test_resnet18_at_imagenet_size(width, millions, billions):
    net = us3l.create("resnet18", num_classes=1000)
    found = us3l.cost(net.skeleton(width), (3, 224, 224))
    channels = [int(width * c) for c in (64, 128, 256, 512)]
    assert (found.params, found.macs) == closed_form_resnet18(channels, 224, 1000)
    assert round(found.params / 1e6, 2) == millions
    assert round(found.macs / 1e9, 2) == billions


@pytest.mark.filterwarnings("ignore:width .* is not calibrated")
def test_the_network_is_left_as_it_was():
    net = us3l.create("resnet18", stem="cifar", base=8)
    view = net.at(0.5)
    cost = us3l.cost(view, (3, 32, 32))
    assert cost == us3l.cost(net.carve(0.5), (3, 32, 32)) == us3l.cost(net.skeleton(0.5), (3, 32, 32))
    assert cost.bytes == 4 * cost.params
    assert not any(p.is_meta for p in view.parameters())
    view(torch.randn(2, 3, 32, 32))


def test_linear_layers_and_biases():
    assert us3l.cost(nn.Linear(10, 5), (10,)) == us3l.Cost(params=55, macs=50, bytes=220)
