"""Group regularisation: weight decay that leaves later channels more freedom (eq. 4 and 5)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from us3l.distributed.sharding import share_like


class GroupDecay:
    """Decays a module's parameters just before a step of the optimiser, whose own weight decay must be 0.

    Convolutions (by output channel) and one-dimensional parameters of `grouped` are decayed in groups of channels, all
    other parameters of `module` uniformly. The paper's lambda is half of `weight_decay`, so that alpha = 0 equals the
    weight decay of torch's optimisers.
    """

    def __init__(self, module: nn.Module, grouped: nn.Module, weight_decay: float, groups: int, alpha: float) -> None:
        in_groups = {id(parameter) for parameter in grouped.parameters() if parameter.ndim != 2}
        self.weight_decay = weight_decay
        self.parameters: list[Tensor] = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.relief = {
            parameter: share_like(
                parameter,
                (weight_decay * alpha * group_of(parameter.shape[0], groups).double())
                .to(parameter)
                .view(-1, *[1] * (parameter.ndim - 1)),
            )
            for parameter in self.parameters
            if alpha and id(parameter) in in_groups
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


def gradients_of(parameters: list[Tensor]) -> list[Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def group_of(channels: int, groups: int) -> Tensor:
    """The group of each channel. Groups are of equal size, rounded down; the last takes the remainder.

    >>> group_of(5, groups=2)
    tensor([0, 0, 1, 1, 1])
    """
    size = max(1, channels // groups)
    return (torch.arange(channels) // size).clamp(max=groups - 1)
