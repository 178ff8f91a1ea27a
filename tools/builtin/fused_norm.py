"""Batch norm and ReLU6 as one operation, for training on a CPU; compiled when first used, if there is a compiler."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

SOURCE = Path(__file__).with_name("fused_norm.cpp")
FLAGS = ("-O3", "-march=native", "-ffast-math", "-shared", "-fPIC")


@functools.cache
def library() -> ctypes.CDLL | None:
    """Return the compiled operations; None where there is no compiler."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        return None
    digest = hashlib.sha256(SOURCE.read_bytes() + " ".join(FLAGS).encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "us3l"
    path = cache / f"fused-norm-{digest}.so"
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        subprocess.run([compiler, *FLAGS, str(SOURCE), "-o", str(temporary)], check=True)
        os.replace(temporary, path)
    loaded = ctypes.CDLL(str(path))
    pointer, number = ctypes.c_void_p, ctypes.c_long
    loaded.norm_forward.argtypes = (
        *[pointer] * 2, number, number, *[pointer] * 2, ctypes.c_float, ctypes.c_int, *[pointer] * 2
    )  # fmt: skip
    loaded.norm_backward.argtypes = (*[pointer] * 3, number, number, *[pointer] * 4, ctypes.c_int, *[pointer] * 2)
    return loaded


class FusedNorm(torch.autograd.Function):
    """Normalise channels-last maps by the statistics of the batch, then clamp them to 0..6 if asked to."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, epsilon: float, clamped: bool) -> Tensor:
        operations = library()
        assert operations is not None
        x = x.contiguous(memory_format=torch.channels_last)
        weight, bias = weight.contiguous(), bias.contiguous()
        channels = x.shape[1]
        y, mean, inverse = torch.empty_like(x), torch.empty(channels), torch.empty(channels)
        operations.norm_forward(
            x.data_ptr(), y.data_ptr(), x.numel() // channels, channels, weight.data_ptr(), bias.data_ptr(),
            epsilon, int(clamped), mean.data_ptr(), inverse.data_ptr(),
        )  # fmt: skip
        ctx.save_for_backward(x, weight, bias, mean, inverse)
        ctx.clamped = clamped
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        operations = library()
        assert operations is not None
        x, weight, bias, mean, inverse = ctx.saved_tensors
        dy = gradients[0].contiguous(memory_format=torch.channels_last)
        channels = x.shape[1]
        dx, dweight, dbias = torch.empty_like(x), torch.empty_like(weight), torch.empty_like(bias)
        operations.norm_backward(
            dy.data_ptr(), x.data_ptr(), dx.data_ptr(), x.numel() // channels, channels, weight.data_ptr(),
            bias.data_ptr(), mean.data_ptr(), inverse.data_ptr(), int(ctx.clamped),
            dweight.data_ptr(), dbias.data_ptr(),
        )  # fmt: skip
        return dx, dweight, dbias, None, None


class BatchNormReLU6(nn.Module):
    """A batch norm, and ReLU6 where one follows it, as one operation. It always uses the batch's statistics."""

    def __init__(self, norm: nn.BatchNorm2d, clamped: bool) -> None:
        super().__init__()
        self.weight, self.bias, self.epsilon, self.clamped = norm.weight, norm.bias, norm.eps, clamped

    def forward(self, x: Tensor) -> Tensor:
        return FusedNorm.apply(x, self.weight, self.bias, self.epsilon, self.clamped)


def fuse_norms(module: nn.Module) -> nn.Module:
    """Let the batch norms of a network, and ReLU6 after them, be one operation each, in place; names stay."""
    if library() is None:
        return module
    names = list(module._modules)
    for place, name in enumerate(names):
        child = module._modules[name]
        if isinstance(child, nn.BatchNorm2d):
            after = names[place + 1] if place + 1 < len(names) else None
            clamped = after is not None and isinstance(module._modules[after], nn.ReLU6)
            module._modules[name] = BatchNormReLU6(child, clamped)
            if clamped and after is not None:
                module._modules[after] = nn.Identity()
        elif child is not None:
            fuse_norms(child)
    return module
