"""What a network costs: parameters, multiply-accumulates, bytes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode


@dataclass(frozen=True)
class Cost:
    params: int
    macs: int
    """Multiply-accumulates of convolutions, linear layers and attention for one image."""
    bytes: int
    """Weights and buffers as stored."""


def cost(network: nn.Module, shape: tuple[int, ...] = (3, 224, 224)) -> Cost:
    """Count the parameters, the multiply-accumulates for one image of that shape, and the bytes of a plain network.

    Nothing is computed: the network runs on tensors that have shapes only.

    >>> cost(nn.Conv2d(3, 8, 3, bias=False), (3, 10, 10))
    Cost(params=216, macs=13824, bytes=864)
    """
    tensors = dict(network.named_parameters()) | dict(network.named_buffers())
    hollow = {name: torch.empty_like(tensor, device="meta") for name, tensor in tensors.items()}
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        functional_call(network, hollow, (torch.empty(2, *shape, device="meta"),))  # two: batch norm may need them
    return Cost(
        params=sum(p.numel() for p in network.parameters()),
        macs=counter.get_total_flops() // 2 // 2,
        bytes=sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()),
    )
