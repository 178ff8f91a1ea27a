"""Where to compute; without torch until it is asked, so that command lines can name the choices."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from us3l.errors import UserError

if TYPE_CHECKING:
    import torch
    from torch import nn

Device = Literal["auto", "cpu", "cuda", "mps"]


def choose_device(asked: Device = "auto") -> torch.device:
    """The device that was asked for, or the best there is.

    Args:
        asked: "auto" is a CUDA device, else Apple's MPS, else the CPU.

    Raises:
        UserError: This machine, or this build of PyTorch, does not have the device.
    """
    import torch

    present = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if asked == "auto":
        return torch.device(next(kind for kind, there in present.items() if there))
    if not present.get(asked):
        usable = ", ".join(sorted(kind for kind, there in present.items() if there))
        raise UserError(f"device={asked!r} is not available here; choose from auto, {usable}")
    return torch.device(asked)


def for_doubles(device: torch.device) -> torch.device:
    """The device itself, or the CPU instead of MPS, which has no double precision."""
    import torch

    return torch.device("cpu") if device.type == "mps" else device


@contextmanager
def moved(module: nn.Module, device: torch.device) -> Iterator[None]:
    """A module on another device for a while."""
    home = next(module.parameters()).device
    module.to(device)
    try:
        yield
    finally:
        module.to(home)
