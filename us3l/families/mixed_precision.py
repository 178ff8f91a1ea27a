"""Mixed precision on CPUs: what learns faster in 32 bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn


def learned_in_32_bits(operation: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Return an operation's result, computed in 32 bits where it learns in bfloat16 on a CPU.

    For operations whose backward pass is far slower there in bfloat16 (torch 2.14, AVX-512): strided depthwise
    convolutions took eight to seventy times as long as in 32 bits, attention by heads of 16 channels six times
    (benchmarks/mixed_precision.py has whole networks).
    """
    if inputs[0].device.type == "cpu" and torch.is_grad_enabled() and torch.is_autocast_enabled("cpu"):
        with torch.autocast("cpu", enabled=False):
            return operation(*(tensor.float() for tensor in inputs))
    return operation(*inputs)


class StridedDepthwise(nn.Conv2d):
    """A strided depthwise convolution that does not slow down mixed precision on CPUs."""

    @classmethod
    def like(cls, plain: nn.Conv2d) -> Self:
        """Return the same convolution, with the same weights (without a bias)."""
        sizes: Any = {"kernel_size": plain.kernel_size, "stride": plain.stride, "padding": plain.padding}
        made = cls(plain.in_channels, plain.out_channels, **sizes, groups=plain.groups, bias=False)
        made.weight = plain.weight
        return made

    def forward(self, x: Tensor) -> Tensor:
        return learned_in_32_bits(super().forward, x)
