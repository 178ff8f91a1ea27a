"""The elastic MobileNetV2 as its training sees it: shared weights, and the network of any width on them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from copy import deepcopy
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.func import functional_call

import us3l
from tools.builtin.fused_norm import fuse_norms
from us3l.sorting import sort_channels

CLASSIFIER = "classifier."


def sorted_source(weights: Path) -> us3l.Slimmable:
    """Return the source as a slimmable network, its channels in order of importance."""
    state = {name: tensor for name, tensor in load_file(weights).items() if not name.startswith(CLASSIFIER)}
    net = us3l.create("mobilenet_v2")
    net.load_plain(state)
    sort_channels(net)
    net.full.to(memory_format=torch.channels_last)
    return net


class Elastic:
    """The networks of all widths on the full network's weights, as they learn: with the statistics of each batch."""

    def __init__(self, net: us3l.Slimmable) -> None:
        self.net = net
        self.shared = dict(net.full.named_parameters())
        self.skeletons: dict[Hashable, nn.Module] = {}

    def __call__(self, width: float, images: Tensor) -> Tensor:
        """Return the features of a batch at a width; gradients flow into the full network's weights."""
        signature = self.net.signature(width)
        if signature not in self.skeletons:
            self.skeletons[signature] = fuse_norms(deepcopy(self.net.skeleton(width))).train()
        skeleton = self.skeletons[signature]
        tensors = {name: leading(self.shared[name], part.shape) for name, part in skeleton.named_parameters()}
        return functional_call(skeleton, tensors, (images,))


def leading(tensor: Tensor, shape: torch.Size) -> Tensor:
    """Return the leading block of a tensor, dense, as convolutions want it."""
    if tensor.shape == shape:
        return tensor
    missing = [
        pad for small, large in zip(reversed(shape), reversed(tensor.shape), strict=True) for pad in (0, small - large)
    ]
    return nn.functional.pad(tensor, missing)


def copy_into(net: us3l.Slimmable, weights: Mapping[str, Tensor]) -> None:
    """Give the full network these weights."""
    with torch.no_grad():
        for name, parameter in net.full.named_parameters():
            parameter.copy_(weights[name])
