"""Group regularisation: weight decay that leaves later channels more freedom (eq. 4 and 5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from us3l.slimmable import Slimmable
from us3l.tensors import tensors_of


class ChannelAxis(NamedTuple):
    """Where a parameter's channels are: an axis, and how many segments it has, each of which is sliced on its own."""

    axis: int = 0
    segments: int = 1


class GroupDecay:
    """Decays a module's parameters just before a step of the optimiser, whose own weight decay must be 0.

    The paper's lambda is half of `weight_decay`, so that alpha = 0 equals the weight decay of torch's optimisers.

    Args:
        module: Of which all parameters that learn are decayed.
        grouped: Those that are decayed in groups of channels; all others are decayed uniformly.
        weight_decay: Of the first group.
        groups: The paper's G.
        alpha: By which fraction each group is decayed less than the one before it.
    """

    def __init__(
        self,
        module: nn.Module,
        grouped: Mapping[Tensor, ChannelAxis],
        weight_decay: float,
        groups: int,
        alpha: float,
    ) -> None:
        self.weight_decay = weight_decay
        self.parameters: list[Tensor] = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.relief = {
            parameter: weight_decay * alpha * relief(parameter, grouped[parameter], groups)
            for parameter in self.parameters
            if alpha and parameter in grouped
        }

    @torch.no_grad()
    def add_to_gradients(self, share: float = 1.0) -> None:
        """Add the regulariser's gradient, with `share` of alpha (SGD, LARS)."""
        decayed = [parameter for parameter in self.parameters if parameter.grad is not None]
        if decayed:
            torch._foreach_add_(gradients_of(decayed), decayed, alpha=self.weight_decay)
        relieved = [parameter for parameter in decayed if parameter in self.relief]
        if relieved:
            relief = [self.relief[parameter] for parameter in relieved]
            torch._foreach_addcmul_(gradients_of(relieved), relieved, relief, value=-share)

    @torch.no_grad()
    def shrink(self, lr: float, share: float = 1.0) -> None:
        """Decay the parameters themselves, apart from their gradients (AdamW)."""
        for parameter in self.parameters:
            if parameter.grad is not None:
                relief = share * self.relief[parameter] if parameter in self.relief else 0.0
                parameter.mul_(1 - lr * (self.weight_decay - relief))


def sliced_channels(net: Slimmable) -> dict[Tensor, ChannelAxis]:
    """Return the parameters that narrower networks have slices of, and the channels that later ones use less.

    Those are the output channels where these are sliced, as of convolutions, linear layers, norms and biases, else the
    axis that is. Of an individual network, which has no narrower ones, they are as in the authors' code: the output
    channels of all but two-dimensional weights.
    """
    narrow = tensors_of(net.skeleton(net.min_width))
    sliced: dict[Tensor, ChannelAxis] = {}
    for name, parameter in net.full.named_parameters():
        segments = (*net.family.segments(name), *[1] * parameter.ndim)
        for axis, (small, large) in enumerate(zip(narrow[name].shape, parameter.shape, strict=True)):
            if small < large:
                sliced[parameter] = ChannelAxis(axis, segments[axis])
                break
    return sliced or output_channels(net.full)


def output_channels(module: nn.Module) -> dict[Tensor, ChannelAxis]:
    return {parameter: ChannelAxis() for parameter in module.parameters() if parameter.ndim != 2}


def relief(parameter: Tensor, channels: ChannelAxis, groups: int) -> Tensor:
    """Return the group of each of a parameter's channels, in a shape that fits it."""
    count = parameter.shape[channels.axis] // channels.segments
    numbers = group_of(count, groups).repeat(channels.segments).double().to(parameter.device, parameter.dtype)
    shape = [1] * parameter.ndim
    shape[channels.axis] = -1
    return numbers.view(shape)


def gradients_of(parameters: list[Tensor]) -> list[Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def group_of(channels: int, groups: int) -> Tensor:
    """Return the group of each channel. Groups are of equal size, rounded down; the last takes the remainder.

    >>> group_of(5, groups=2)
    tensor([0, 0, 1, 1, 1])
    """
    size = max(1, channels // groups)
    return (torch.arange(channels) // size).clamp(max=groups - 1)
