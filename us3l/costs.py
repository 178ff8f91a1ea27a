"""What a network costs: parameters, multiply-accumulates, bytes."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from us3l.tensors import HollowNorms


@dataclass(frozen=True)
class Cost:
    """What a network costs: see `cost`."""

    params: int
    """Parameters."""
    macs: int
    """Multiply-accumulates of convolutions, linear layers and attention for one image."""
    macs_with_norms: int
    """The same and those of norms (two for each number) and average pooling (one), as the paper counts."""
    bytes: int
    """Weights and buffers as stored."""


def cost(network: nn.Module, shape: tuple[int, ...] = (3, 224, 224)) -> Cost:
    """Count the parameters, multiply-accumulates and bytes of a plain network.

    Nothing is computed: the network runs on tensors that have shapes only.

    Args:
        network: What `net.at`, `net.carve` or, faster, `net.skeleton` give; or any other network.
        shape: Of one image: channels, height, width.

    Returns:
        Its `Cost` per image.

    >>> cost(nn.Conv2d(3, 8, 3, bias=False), (3, 10, 10))
    Cost(params=216, macs=13824, macs_with_norms=13824, bytes=864)
    """
    tensors = dict(network.named_parameters()) | dict(network.named_buffers())
    hollow = {name: torch.empty_like(tensor, device="meta") for name, tensor in tensors.items()}
    with (
        torch.no_grad(),
        FlopCounterMode(display=False, custom_mapping=NORMS) as counter,
        HollowNorms() as batch_norms,
    ):
        functional_call(network, hollow, (torch.empty(2, *shape, device="meta"),))  # two: batch norm may need them
    norms = norm_flops((batch_norms.numbers,))
    total = counter.get_total_flops() + norms
    norms += sum(flops for operation, flops in counter.get_flop_counts()["Global"].items() if operation in NORMS)
    return Cost(
        params=sum(p.numel() for p in network.parameters()),
        macs=(total - norms) // 2 // 2,  # two flops each, and two images
        macs_with_norms=total // 2 // 2,
        bytes=sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()),
    )


def norm_flops(shape: tuple[int, ...], *_: Any, **__: Any) -> int:
    return 2 * 2 * prod(shape)  # a flop counter's multiply-accumulate is two


def pool_flops(shape: tuple[int, ...], *_: Any, **__: Any) -> int:
    return 2 * prod(shape)


NORMS: dict[Any, Any] = {
    torch.ops.aten.native_batch_norm: norm_flops,
    torch.ops.aten._native_batch_norm_legit: norm_flops,
    torch.ops.aten._native_batch_norm_legit_no_training: norm_flops,
    torch.ops.aten.native_layer_norm: norm_flops,
    torch.ops.aten.native_group_norm: norm_flops,
    torch.ops.aten._adaptive_avg_pool2d: pool_flops,
    torch.ops.aten.mean: pool_flops,  # what adaptive pooling to one pixel becomes
}


def feature_count(skeleton: nn.Module, size: int) -> int:
    """How many features a network gives for an image; nothing is computed.

    Args:
        skeleton: What `net.skeleton` gives.
        size: Side of the image, in pixels.
    """
    with HollowNorms():
        return skeleton(torch.zeros(2, 3, size, size, device="meta")).shape[-1]
