"""Heads: what stands between the network and the losses. They are not deployed."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from us3l.storage import check_same, copy_weights, shapes_of, write_tensors
from us3l.system.errors import UserError

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
    """Return a head from features to embedding. Its input follows the width; all else is one for all widths."""
    return nn.Sequential(
        HeadLinear(features, hidden),
        *norm_and_relu(hidden),
        HeadLinear(hidden, hidden),
        *norm_and_relu(hidden),
        HeadLinear(hidden, dim),
        *([norm(dim, affine=False)] if final_norm else []),
    )


def predictor(dim: int, hidden: int, final_norm: bool = False) -> nn.Sequential:
    """Return a head from embedding to embedding: the paper's h, of the MSE base loss, or the sub-networks' own g."""
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


@torch.no_grad()
def save_projector(path: Path, head: nn.Sequential, features: Tensor) -> None:
    """Keep a projector with the statistics of its batch norms, which are those on these features."""
    kept = {name: parameter.detach() for name, parameter in head.named_parameters()}
    x = features
    for number, layer in enumerate(head):
        if isinstance(layer, nn.BatchNorm1d):
            kept[f"{number}.running_mean"], kept[f"{number}.running_var"] = x.mean(0), x.var(0)
        x = layer(x.clone())  # ReLUs work in place
    write_tensors(path, kept)


def read_projector(tensors: dict[str, Tensor], name: str) -> nn.Sequential:
    try:
        (hidden, features), dim = tensors["0.weight"].shape, len(tensors["6.bias"])
    except (KeyError, ValueError, TypeError):
        raise UserError(f"{name} does not hold a projector of us3l") from None
    head = projector(features, hidden, dim, final_norm="7.running_mean" in tensors)
    for layer in head:
        if isinstance(layer, nn.BatchNorm1d):
            for statistic in ("running_mean", "running_var"):
                layer.register_buffer(statistic, torch.zeros(layer.num_features))
            layer.track_running_stats = True
    state = head.state_dict()
    check_same(f"{name} does not hold a projector of us3l", tensors, shapes_of(state))
    copy_weights(tensors, state)
    return head
