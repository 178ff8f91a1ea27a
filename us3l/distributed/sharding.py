"""Parameters, gradients and the optimiser's state in shares, one for each process (FSDP).

All of a `Learner` is one unit: its forward gathers the whole tensors, so that sub-networks can be sliced from them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from lightning_fabric.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils._pytree import tree_map_only

T = TypeVar("T")


def sharded(count: int) -> ModelParallelStrategy:
    """Fabric's strategy for that many processes."""
    return ModelParallelStrategy(shard, data_parallel_size=count, tensor_parallel_size=1)


def shard(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    fully_shard(module.to(memory_format=torch.contiguous_format), mesh=mesh["data_parallel"])  # FSDP knows no other
    return module


def whole(state: T) -> T:
    """The same values with whole tensors in the place of shares; all processes must ask together."""
    return tree_map_only(DTensor, DTensor.full_tensor, state)


def local(tensor: Tensor) -> Tensor:
    """This process's share of a tensor, or the tensor itself where there are no shares."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def gather(module: nn.Module) -> None:
    """Let a module have whole tensors, to look at, until `scatter`; all processes must ask together."""
    if isinstance(module, FSDPModule):
        module.unshard()


def scatter(module: nn.Module) -> None:
    if isinstance(module, FSDPModule):
        module.reshard()


def share_like(example: Tensor, tensor: Tensor) -> Tensor:
    """This process's share of a tensor, if the example is one of a tensor with as many rows (FSDP); else the tensor."""
    if not isinstance(example, DTensor):
        return tensor
    return distribute_tensor(tensor, example.device_mesh, example.placements, src_data_rank=None)


def load_module(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Take whole tensors, of which each process keeps its shares."""
    own = module.state_dict()
    shares = OrderedDict((name, share_like(own.get(name, value), value)) for name, value in state.items())
    shares._metadata = own._metadata  # type: ignore[attr-defined]  # without it, batch norms take it for an old version's
    module.load_state_dict(shares)


def load_optimiser(optimiser: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    optimiser.load_state_dict(state)
    for parameter, values in optimiser.state.items():
        for name, value in values.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                values[name] = share_like(parameter, value)
