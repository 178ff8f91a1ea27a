"""Where to compute; without torch until a function needs it, so that command lines can name the choices."""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from us3l.system.errors import UserError

if TYPE_CHECKING:
    import torch
    from torch import nn

Device = Literal["auto", "cpu", "cuda", "mps"]
Precision = Literal["32-true", "bf16-mixed", "16-mixed"]
AskedPrecision = Literal["auto", Precision]
BF16, TENSOR_CORES = (8, 0), (7, 0)
"""CUDA capabilities from which on a GPU computes in bfloat16, and in float16 at several times its speed."""
TRIM_THRESHOLD, MMAP_MAX = -1, -4
"""Names of settings in malloc.h."""


def choose_device(asked: Device = "auto") -> torch.device:
    """Return the device that was asked for, or the best there is.

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


def precision_for(kind: str, capability: tuple[int, int] | None = None) -> Precision:
    """Return the arithmetic that suits a device for training.

    16 bits pay on GPUs that have units for them: bfloat16 where there is a choice, since float16 needs scaled
    gradients. CPUs and MPS stay at 32 bits: few CPUs compute in bfloat16, and on MPS nobody has tried it.

    Args:
        kind: Of the device: "cuda", "mps" or "cpu".
        capability: A CUDA device's, such as (8, 0).

    >>> precision_for("cuda", (8, 6)), precision_for("cuda", (7, 5)), precision_for("cpu")
    ('bf16-mixed', '16-mixed', '32-true')
    """
    if kind != "cuda" or capability is None:
        return "32-true"
    if capability >= BF16:
        return "bf16-mixed"
    return "16-mixed" if capability >= TENSOR_CORES else "32-true"


def precision_here(asked: Device = "auto") -> Precision:
    """Return what suits the device that would be chosen on this machine; 32 bits if it is missing.

    Args:
        asked: As for `choose_device`.
    """
    import torch

    try:
        device = choose_device(asked)
    except UserError:  # which whoever computes there will hear of
        return "32-true"
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    return precision_for(device.type, capability)


def for_doubles(device: torch.device) -> torch.device:
    """Return the device itself, or the CPU instead of MPS, which has no double precision."""
    import torch

    return torch.device("cpu") if device.type == "mps" else device


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    import psutil

    process = psutil.Process()
    return len(process.cpu_affinity()) if hasattr(process, "cpu_affinity") else psutil.cpu_count() or 1


def available_memory() -> int:
    """Return the bytes of memory that can be had without swapping."""
    import psutil

    return psutil.virtual_memory().available


def processor_name() -> str:
    """Return what the processor calls itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


@contextmanager
def moved(module: nn.Module, device: torch.device) -> Iterator[None]:
    """Keep a module on another device for a while."""
    home = next(module.parameters()).device
    module.to(device)
    try:
        yield
    finally:
        module.to(home)


def keep_freed_memory() -> None:
    """Keep the memory of freed tensors for the next ones, instead of asking the system for fresh pages each time.

    It speeds up small tensor operations, of which views are made, by up to several times. Only with the C library of
    most Linux systems; elsewhere nothing happens.
    """
    if sys.platform == "linux" and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)):
        mallopt(MMAP_MAX, 0)
        mallopt(TRIM_THRESHOLD, 2**31 - 1)
