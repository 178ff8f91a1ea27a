"""The paper's losses as pure functions of outputs: unit vectors (N x D, see `unit`), or logits of classes.

Between unit vectors a product is a cosine, so these are the formulas of the paper, and so are their gradients.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor
from torch.nn import functional as F

from us3l.distributed.peers import ALONE, Peers


def unit(x: Tensor) -> Tensor:
    """Return rows of length 1; never in less than float32.

    Args:
        x: Vectors (N x D).

    Returns:
        The same directions (N x D).
    """
    return F.normalize(at_least_float32(x), dim=1)


def nt_xent(z: Tensor, t: Tensor, temperature: float, peers: Peers = ALONE) -> Tensor:
    """Return InfoNCE of paired outputs; every other sample of either side, of all processes, is a negative (eq. 2).

    Args:
        z: Outputs, unit vectors (N x D).
        t: Their targets, unit vectors (N x D).
        temperature: Divides the cosines.
        peers: The processes that share the batch.

    Returns:
        The mean loss over all 2N rows.

    >>> round(nt_xent(torch.eye(2), torch.eye(2), 0.5).item(), 4)  # log(1 + 2 exp(-2))
    0.2395
    """
    both = torch.cat([z, t])  # 2N x D
    everyone = both if peers.count == 1 else torch.cat([peers.gather(z), peers.gather(t)])  # 2M x D
    logits = products(both, everyone) / temperature
    places = peers.places(z)
    itself = torch.cat([places, places + len(everyone) // 2])
    logits.scatter_(1, itself[:, None], float("-inf"))
    return F.cross_entropy(logits, itself.roll(len(z)))


def info_nce(z: Tensor, t: Tensor, temperature: float, peers: Peers = ALONE) -> Tensor:
    """Return InfoNCE of outputs and targets; the other targets of all processes are negatives (eq. 7; MoCo v3's).

    Args:
        z: Outputs, unit vectors (N x D).
        t: Their targets, unit vectors (N x D).
        temperature: Divides the cosines.
        peers: The processes that share the batch.

    Returns:
        The mean loss over the N rows.

    >>> round(info_nce(torch.eye(2), torch.eye(2), 0.5).item(), 4)  # log(1 + exp(-2))
    0.1269
    """
    return F.cross_entropy(products(z, peers.gather(t)) / temperature, peers.places(z))


def negative_cosine(z: Tensor, t: Tensor) -> Tensor:
    """Return the mean negative cosine similarity of outputs and targets (eq. 6): what the paper calls MSE.

    Args:
        z: Outputs, unit vectors (N x D).
        t: Their targets, unit vectors (N x D).

    Returns:
        A value from -1 (all equal) to 1.

    >>> negative_cosine(torch.eye(2), torch.eye(2)).item()
    -1.0
    """
    return -(z * t).sum(dim=1).mean()


def moco(z: Tensor, t: Tensor, queue: Tensor, temperature: float) -> Tensor:
    """Return InfoNCE of outputs against their targets, the targets of earlier batches being negatives (MoCo's).

    Args:
        z: Outputs, unit vectors (N x D).
        t: Their targets, unit vectors (N x D).
        queue: Targets of earlier batches, unit vectors (K x D).
        temperature: Divides the cosines.

    Returns:
        The mean loss over the N rows.

    >>> round(moco(torch.eye(2), torch.eye(2), -torch.eye(2), 1.0).item(), 4)  # log(1 + exp(-1) + exp(-2))
    0.4076
    """
    logits = similarities(z, t, queue) / temperature
    return F.cross_entropy(logits, torch.zeros(len(z), dtype=torch.long, device=z.device))


def seed(z: Tensor, t: Tensor, queue: Tensor, temperature: float, teacher_temperature: float) -> Tensor:
    """Return the loss by which outputs become as similar to their target and the queue as the target is (SEED's).

    Args:
        z: Outputs, unit vectors (N x D).
        t: Their targets, unit vectors (N x D).
        queue: Targets of earlier batches, unit vectors (K x D).
        temperature: Divides the outputs' cosines.
        teacher_temperature: Divides the targets' cosines.

    Returns:
        The mean cross-entropy over the N rows.
    """
    expected = (similarities(t, t, queue) / teacher_temperature).softmax(dim=1)
    return F.cross_entropy(similarities(z, t, queue) / temperature, expected)


def relations(z: Tensor, t: Tensor, relation_temperature: float, peers: Peers = ALONE) -> Tensor:
    """Return the loss by which outputs become as similar to the batch's other targets as their own are (after SEED).

    Args:
        z: Outputs, unit vectors (N x D).
        t: Their targets, unit vectors (N x D); no row is compared with its own.
        relation_temperature: Divides the cosines, those of outputs and those of targets.
        peers: The processes that share the batch.

    Returns:
        The mean cross-entropy over the N rows.

    >>> both = unit(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]))
    >>> round(relations(both, both, 1.0).item(), 4)  # the mean of 0.6343, 0.6343 and log 2
    0.6539
    """
    everyone, itself = peers.gather(t), peers.places(z)[:, None]
    least = torch.finfo(z.dtype).min  # not minus infinity: the targets' zeros times that are not a number
    logits = (products(z, everyone) / relation_temperature).scatter(1, itself, least)
    expected = (products(t, everyone) / relation_temperature).scatter(1, itself, least).softmax(dim=1)
    return F.cross_entropy(logits, expected)


def similarities(z: Tensor, t: Tensor, queue: Tensor) -> Tensor:
    """Return those of each row of `z` to its row of `t`, and to all of the queue: N x (1 + K)."""
    return torch.cat([(z * t).sum(dim=1, keepdim=True), products(z, queue)], dim=1)


def products(rows: Tensor, others: Tensor) -> Tensor:
    """Multiply all rows with all others in their own type: mixed precision would round cosines to three digits."""
    kind = rows.device.type
    with torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext():
        return rows @ others.T


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return cross-entropy of a network's class probabilities with labels.

    Args:
        logits: Of the network that learns (N x C).
        labels: Numbers of classes (N).

    Returns:
        The mean over the N rows.

    >>> round(cross_entropy(torch.zeros(1, 2), torch.tensor([1])).item(), 4)  # log 2
    0.6931
    """
    return F.cross_entropy(logits, labels)


def soft_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Return cross-entropy with the classes' probabilities according to other logits (US-Net's in-place distillation).

    Args:
        logits: Of the network that learns (N x C).
        target: Logits of the network to imitate (N x C).

    Returns:
        The mean cross-entropy over the N rows.

    >>> round(soft_cross_entropy(torch.zeros(1, 2), torch.randn(1, 2)).item(), 4)  # log 2, whatever the target
    0.6931
    """
    return F.cross_entropy(logits, target.softmax(dim=1))


def at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
