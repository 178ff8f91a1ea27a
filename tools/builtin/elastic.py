"""The elastic MobileNetV2 as its training sees it: shared weights, and the network of any width on them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.func import functional_call

import us3l
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


def run_at(net: us3l.Slimmable, width: float, images: Tensor) -> Tensor:
    """Return the features of a batch at a width, with the batch's own statistics; gradients flow into the weights.

    Unlike `net(images, width)`, norms of the full network that keep no statistics are never looked for.
    """
    skeleton = net.skeleton(width).train()
    shared = dict(net.full.named_parameters())
    tensors = {name: leading(shared[name], part.shape) for name, part in skeleton.named_parameters()}
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
