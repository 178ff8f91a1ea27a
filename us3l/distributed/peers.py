"""A batch that is split over several processes, and yet is one batch to the losses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed


@dataclass(frozen=True)
class Peers:
    """The processes that share a batch, each with as many of its rows; alone by default.

    The mean of their losses is the loss of the batch, and the mean of their gradients is its gradient: what one of
    them contributes to the losses of the others comes back to it by `gather`, added up.
    """

    rank: int = 0
    count: int = 1

    def gather(self, rows: Tensor) -> Tensor:
        """Return the rows of all processes in the order of their ranks; gradients flow back to where they came from."""
        return rows if self.count == 1 else _Gather.apply(rows.contiguous(), self)

    def places(self, rows: Tensor) -> Tensor:
        """Return where this process's rows are among those of all."""
        return self.rank * len(rows) + torch.arange(len(rows), device=rows.device)


ALONE = Peers()


class _Gather(torch.autograd.Function):  # torch.distributed.nn, which has this, is deprecated
    @staticmethod
    def forward(ctx: Any, rows: Tensor, peers: Peers) -> Tensor:
        ctx.peers = peers
        gathered = [torch.empty_like(rows) for _ in range(peers.count)]
        distributed.all_gather(gathered, rows)
        return torch.cat(gathered)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        total = gradient.clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(total)
        return total.chunk(ctx.peers.count)[ctx.peers.rank], None
