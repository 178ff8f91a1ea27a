"""Heads: small MLPs between the network and the losses. They are not deployed."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class LeadingLinear(nn.Linear):
    """A linear layer that takes inputs of any width up to its own, with the leading columns of its weight."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight[:, : x.shape[-1]], self.bias)


def projector(features: int, hidden: int, dim: int) -> nn.Sequential:
    """Features to embedding. Its first layer's input follows the width; all else is one for all widths."""
    return nn.Sequential(
        LeadingLinear(features, hidden),
        *norm_and_relu(hidden),
        nn.Linear(hidden, hidden),
        *norm_and_relu(hidden),
        nn.Linear(hidden, dim),
    )


def predictor(dim: int, hidden: int) -> nn.Sequential:
    """Embedding to embedding: the paper's h, of the MSE base loss, and g, through which sub-networks imitate."""
    return nn.Sequential(nn.Linear(dim, hidden, bias=False), *norm_and_relu(hidden), nn.Linear(hidden, dim))


def norm_and_relu(channels: int) -> tuple[nn.Module, nn.Module]:
    # Every width has statistics of its own, so none are kept.
    return nn.BatchNorm1d(channels, track_running_stats=False), nn.ReLU(inplace=True)
