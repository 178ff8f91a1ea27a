"""The optimisers of a run; and steps of them that are taken back."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from us3l.system.errors import UserError
from us3l.training.recipes import Optimiser


def new_optimiser(settings: Optimiser, module: nn.Module, device: torch.device) -> torch.optim.Optimizer:
    """Return an optimiser of a module's parameters, without weight decay, which `GroupDecay` does."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if settings.algorithm == "sgd":
        return torch.optim.SGD(parameters, lr=settings.lr, momentum=settings.momentum)
    if settings.algorithm == "adamw":
        on_device = device.type == "cuda"  # where its count of steps lies, too
        betas = (settings.momentum, 0.999)
        return torch.optim.AdamW(parameters, lr=settings.lr, betas=betas, weight_decay=0.0, capturable=on_device)
    try:
        from timm.optim import Lars
    except ImportError:
        raise UserError("LARS comes from timm: pip install 'us3l[lars]'") from None
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "always_adapt": True},
        {"params": [p for p in parameters if p.ndim <= 1]},  # norms and biases are left alone, as is usual
    ]
    return Lars(groups, lr=settings.lr, momentum=settings.momentum)


def tensors_of(optimiser: torch.optim.Optimizer) -> dict[tuple[Tensor, str], Tensor]:
    """Return all that an optimiser's step changes: the parameters, and its own state of each."""
    tensors: dict[tuple[Tensor, str], Tensor] = {}
    for parameter in (parameter for group in optimiser.param_groups for parameter in group["params"]):
        state = {name: value for name, value in optimiser.state.get(parameter, {}).items() if isinstance(value, Tensor)}
        tensors |= {(parameter, name): value.detach() for name, value in {"": parameter, **state}.items()}
    return tensors


def copies(optimiser: torch.optim.Optimizer) -> dict[tuple[Tensor, str], Tensor]:
    return {key: tensor.clone() for key, tensor in tensors_of(optimiser).items()}


@torch.no_grad()
def take_back(optimiser: torch.optim.Optimizer, before: dict[tuple[Tensor, str], Tensor], condition: Tensor) -> None:
    """Bring back what `copies` kept, where the condition (on the device) holds.

    What an optimiser did not have before its first step becomes zeros, from which it goes on in the same way.
    """
    for key, tensor in tensors_of(optimiser).items():
        tensor.copy_(torch.where(condition, before.get(key, torch.zeros_like(tensor)), tensor))
