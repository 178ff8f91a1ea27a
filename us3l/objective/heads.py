"""Heads: what stands between the network and the losses. They are not deployed."""

from __future__ import annotations

import platform
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

PerView = tuple[Tensor, ...]
"""Something of each view of a batch, of which there are one or two."""


class HeadLinear(nn.Linear):
    """A linear layer that takes inputs of any width up to its own, with the leading columns of its weight."""

    def forward(self, x: Tensor) -> Tensor:
        whole = x.shape[-1] == self.in_features
        weight = self.weight if whole else self.weight[:, : x.shape[-1]]
        if suits_onednn(x):
            return F.linear(x.to_mkldnn(), weight, self.bias).to_dense()
        return F.linear(x, weight, self.bias)


class Alignment(HeadLinear):
    """Features of any width to a teacher's dimension. Those that have it at width 1 stay as they are there.

    Where it is the same, the teacher is likely the same network, so that narrow widths begin with its leading features.
    """

    def __init__(self, features: int, dim: int) -> None:
        super().__init__(features, dim)
        if features == dim:
            nn.init.eye_(self.weight)
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x if x.shape[-1] == self.in_features == self.out_features else super().forward(x)


def suits_onednn(x: Tensor) -> bool:
    """Return whether matrices are multiplied by oneDNN instead of MKL, which takes a third longer on AMD processors."""
    plain = x.device.type == "cpu" and x.dtype == torch.float32
    if not plain or torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling():
        return False
    return torch.backends.mkldnn.is_available() and platform.machine() in ("x86_64", "AMD64")


def projector(features: int, hidden: int, dim: int, final_norm: bool = False) -> nn.Sequential:
    """Features to embedding. Its first layer's input follows the width; all else is one for all widths."""
    return nn.Sequential(
        HeadLinear(features, hidden),
        *norm_and_relu(hidden),
        HeadLinear(hidden, hidden),
        *norm_and_relu(hidden),
        HeadLinear(hidden, dim),
        *([norm(dim, affine=False)] if final_norm else []),
    )


def predictor(dim: int, hidden: int, final_norm: bool = False) -> nn.Sequential:
    """Embedding to embedding: the paper's h, of the MSE base loss, and g, through which sub-networks imitate."""
    return nn.Sequential(
        HeadLinear(dim, hidden, bias=False),
        *norm_and_relu(hidden),
        HeadLinear(hidden, dim),
        *([norm(dim, affine=False)] if final_norm else []),
    )


def per_view(head: nn.Module, views: Sequence[Tensor]) -> PerView:
    """Return what a head makes of each view.

    Linear layers take all views at once: they are wide, and the traffic of their weights and gradients is what they
    cost. Norms take each view by itself.
    """
    if not isinstance(head, nn.Sequential):
        return tuple(map(head, views))
    sizes, x = [len(view) for view in views], torch.cat([*views])
    for layer in head:
        x = torch.cat([layer(view) for view in x.split(sizes)]) if isinstance(layer, nn.BatchNorm1d) else layer(x)
    return x.split(sizes)


def norm_and_relu(channels: int) -> tuple[nn.Module, nn.Module]:
    return norm(channels), nn.ReLU(inplace=True)


def norm(channels: int, affine: bool = True) -> nn.BatchNorm1d:
    # Every width has statistics of its own, so none are kept.
    return nn.BatchNorm1d(channels, affine=affine, track_running_stats=False)


class Queue(nn.Module):
    """The latest targets: a ring of unit vectors, random at first, that belongs to the state of a run."""

    rows: Tensor
    place: Tensor

    def __init__(self, length: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("rows", F.normalize(torch.randn(length, dim), dim=1))
        self.register_buffer("place", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def push(self, new: Tensor, unless: Tensor | None = None) -> None:
        """Put new rows in the place of the oldest ones; nothing changes where a condition on the device holds."""
        length = len(self.rows)
        new = new[-length:].to(self.rows)
        places = (self.place + torch.arange(len(new), device=new.device)) % length
        count = torch.full_like(self.place, len(new))
        if unless is not None:
            new, count = torch.where(unless, self.rows[places], new), count * ~unless
        self.rows[places] = new
        self.place.add_(count).remainder_(length)
