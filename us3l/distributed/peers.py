"""A batch that is split over several processes, and is still one to the losses, and, if asked for, to batch norms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode


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


class SyncedBatchNorm(TorchFunctionMode):
    """While it is entered, batch norms that learn use the statistics of all processes' rows.

    A mode rather than a kind of layer, so that networks stay plain; torch's SyncBatchNorm is one, for GPUs only.
    """

    def __init__(self, peers: Peers) -> None:
        super().__init__()
        self.peers = peers

    def __torch_function__(
        self, function: Callable[..., Any], _: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function is F.batch_norm:
            return self.batch_norm(*args, **kwargs)
        return function(*args, **kwargs)

    def batch_norm(
        self,
        x: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        if not training or running_mean is not None:
            return F.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
        over = [0, *range(2, x.ndim)]
        rows = x.to(torch.promote_types(x.dtype, torch.float32))
        own_var, own_mean = torch.var_mean(rows, dim=over, correction=0)
        means, variances = self.peers.gather(torch.stack([own_mean, own_var])[None]).unbind(dim=1)  # processes x C
        mean = means.mean(dim=0)
        var = (variances + (means - mean).square()).mean(dim=0)
        scale = (var + eps).rsqrt()
        scale = scale if weight is None else scale * weight
        shape = [1, -1] + [1] * (x.ndim - 2)
        shift = -mean * scale if bias is None else bias - mean * scale
        return torch.addcmul(shift.view(shape), rows, scale.view(shape)).to(x.dtype)
