"""How much memory a network's activations need at once."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from us3l.tensors import batch_norms


class Trace(TorchDispatchMode):
    """Notes when each storage is first and last used, counted in operations, and keeps them all alive."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0
        self.used: dict[int, tuple[int, int]] = {}
        self.tensors: dict[int, Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for tensor in tree_leaves((args, kwargs, found)):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()._cdata
                self.tensors.setdefault(storage, tensor)
                self.used[storage] = self.used.get(storage, (self.operations,))[0], self.operations
        self.operations += 1
        return found


def peak_memory(network: nn.Module, shape: tuple[int, ...]) -> int:
    """The most bytes that the activations of one image of that shape take at any operation of a forward pass.

    A tensor counts from the operation that writes it to the last that reads it, the image from the first; tensors that
    share storage, as in-place results do, count once. Batch norm counts as folded into convolutions, as in exported
    files; weights and scratch memory inside an operation do not count. Nothing is computed.

    >>> peak_memory(nn.Conv2d(3, 8, 3, padding=1), (3, 10, 10)) == 4 * (3 + 8) * 10 * 10
    True
    """
    folded = copy.deepcopy(network).to("meta").eval()
    for name in batch_norms(folded):
        folded.set_submodule(name, nn.Identity())
    image = torch.empty(1, *shape, device="meta")
    with torch.no_grad(), Trace() as trace:
        folded(image)
    for weight in (*folded.parameters(), *folded.buffers()):
        trace.used.pop(weight.untyped_storage()._cdata, None)
    alive = [0] * trace.operations
    for storage, (first, last) in trace.used.items():
        for operation in range(first, last + 1):
            alive[operation] += trace.tensors[storage].untyped_storage().nbytes()
    return max(alive)
