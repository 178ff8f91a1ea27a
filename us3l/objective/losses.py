"""Losses between embeddings, as pure functions. They normalise, and never compute in less than float32."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def nt_xent(z: Tensor, t: Tensor, temperature: float) -> Tensor:
    """InfoNCE of paired embeddings (N x D each); every other sample of either side is a negative (eq. 2).

    >>> round(nt_xent(torch.eye(2), torch.eye(2), 0.5).item(), 4)  # log(1 + 2 exp(-2))
    0.2395
    """
    both = F.normalize(at_least_float32(torch.cat([z, t])), dim=1)  # 2N x D
    logits = both @ both.T / temperature
    logits.fill_diagonal_(float("-inf"))
    partners = torch.arange(len(both), device=both.device).roll(len(z))
    return F.cross_entropy(logits, partners)


def info_nce(z: Tensor, t: Tensor, temperature: float) -> Tensor:
    """InfoNCE of embeddings against their targets (N x D each), the other targets being negatives (eq. 7).

    >>> round(info_nce(torch.eye(2), torch.eye(2), 0.5).item(), 4)  # log(1 + exp(-2))
    0.1269
    """
    z, t = (F.normalize(at_least_float32(x), dim=1) for x in (z, t))
    return F.cross_entropy(z @ t.T / temperature, torch.arange(len(z), device=z.device))


def negative_cosine(p: Tensor, z: Tensor) -> Tensor:
    """The mean negative cosine similarity of paired embeddings (N x D each): what the paper calls MSE.

    >>> negative_cosine(torch.eye(2), 3 * torch.eye(2)).item()
    -1.0
    """
    return -F.cosine_similarity(at_least_float32(p), at_least_float32(z), dim=1).mean()


def at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
