from itertools import pairwise

import pytest
import torch
from torch import nn

import us3l
from us3l.deploy.peak_memory import peak_memory

FLOAT, SIDE = 4, 10


def test_a_chain_needs_the_two_neighbours_that_are_largest_together():
    channels = [3, 8, 16, 4, 2]
    layers = [nn.Conv2d(a, b, 3, padding=1) for a, b in pairwise(channels)]
    expected = FLOAT * SIDE**2 * (8 + 16)  # closed form: max over layers of what goes in and what comes out
    assert peak_memory(nn.Sequential(*layers), (3, SIDE, SIDE)) == expected


def test_in_place_operations_and_views_take_nothing_and_others_do():
    def chain(inplace):
        return nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU(inplace), nn.Flatten(), nn.Linear(8 * SIDE**2, 5))

    assert peak_memory(chain(True), (3, SIDE, SIDE)) == FLOAT * SIDE**2 * (3 + 8)
    assert peak_memory(chain(False), (3, SIDE, SIDE)) == FLOAT * SIDE**2 * (8 + 8)


def test_a_shortcut_waits():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 3, 1)

        def forward(self, x):
            return x + self.second(self.first(x))

    # The second convolution reads 8 channels and writes 3, while the 3 of the image wait.
    assert peak_memory(Block(), (3, SIDE, SIDE)) == FLOAT * SIDE**2 * (3 + 8 + 3)


def test_batch_norm_is_folded():
    plain = nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU(True))
    normed = nn.Sequential(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), nn.ReLU(True))
    assert peak_memory(normed, (3, SIDE, SIDE)) == peak_memory(plain, (3, SIDE, SIDE))
    assert isinstance(normed[1], nn.BatchNorm2d)  # the network itself is left alone


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "vit_tiny"])
def test_it_grows_with_the_width_and_needs_no_weights(name):
    options = {"image_size": 32, "patch": 4} if name.startswith("vit") else {"stem": "cifar"}
    with torch.device("meta"):
        net = us3l.create(name, **options)
    found = [peak_memory(net.skeleton(width), (3, 32, 32)) for width in (0.25, 0.5, 1.0)]
    assert found == sorted(found)
    assert found[0] < found[-1] < 5e6


def test_a_resnet_by_hand():
    """In the first stage, a block's input waits while its second convolution reads as much and writes as much."""
    with torch.device("meta"):
        net = us3l.create("resnet18", stem="cifar", base=16)
    assert peak_memory(net.skeleton(1.0), (3, 32, 32)) == FLOAT * 3 * 16 * 32 * 32
