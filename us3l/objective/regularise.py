"""Group regularisation: weight decay that leaves later channels more freedom (eq. 4 and 5)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class GroupDecay:
    """Adds the regulariser's gradient to a module's gradients; the optimiser's own weight decay must be 0.

    Convolutions (by output channel) and one-dimensional parameters of `grouped` are decayed in groups of channels, all
    other parameters of `module` uniformly. The paper's lambda is half of `weight_decay`, so that alpha = 0 equals the
    weight decay of torch's SGD.
    """

    def __init__(self, module: nn.Module, grouped: nn.Module, weight_decay: float, groups: int, alpha: float) -> None:
        in_groups = {id(parameter) for parameter in grouped.parameters() if parameter.ndim != 2}
        self.rates: list[tuple[nn.Parameter, Tensor]] = []
        for parameter in module.parameters():
            if not parameter.requires_grad:
                continue
            own_alpha = alpha if id(parameter) in in_groups else 0.0
            rates = decay_rates(parameter.shape[0], weight_decay, groups, own_alpha)
            self.rates.append((parameter, rates.to(parameter).view(-1, *[1] * (parameter.ndim - 1))))

    @torch.no_grad()
    def add_to_gradients(self) -> None:
        for parameter, rates in self.rates:
            if parameter.grad is not None:
                parameter.grad.addcmul_(parameter, rates)


def decay_rates(channels: int, weight_decay: float, groups: int, alpha: float) -> Tensor:
    """The decay of each channel. Groups are of equal size, rounded down; the last takes the remainder.

    >>> decay_rates(5, 1.0, groups=2, alpha=0.1)
    tensor([1.0000, 1.0000, 0.9000, 0.9000, 0.9000])
    """
    size = max(1, channels // groups)
    group = (torch.arange(channels) // size).clamp(max=groups - 1)
    return weight_decay * (1 - group * alpha)
