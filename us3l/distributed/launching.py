"""How the processes of a run start, agree, and wait for each other."""

from __future__ import annotations

import itertools
import os
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins.environments import TorchElasticEnvironment
from lightning_fabric.strategies import DDPStrategy
from lightning_fabric.utilities.rank_zero import rank_zero_only
from torch.distributed import distributed_c10d

from us3l.system.errors import UserError

POLL = 0.5  # seconds
_turns = itertools.count()


def processes(devices: int) -> tuple[int, int]:
    """Return how many processes there will be on each machine, and on how many machines.

    Args:
        devices: The number on one machine, unless torchrun has started them, which then decides.
    """
    if not TorchElasticEnvironment.detect():
        return devices, 1
    local = int(os.environ["LOCAL_WORLD_SIZE"])
    return local, int(os.environ["WORLD_SIZE"]) // local


def make_fabric(accelerator: str, devices: int, precision: str) -> Fabric:
    """Return Fabric on the devices of one machine, or in the processes that torchrun has started on one or several.

    Args:
        accelerator: Kind of device: "cpu", "cuda", "mps" or "auto".
        devices: Number of devices; torchrun's number goes before it.
        precision: Fabric's name of it, such as "bf16-mixed".
    """
    local, machines = processes(devices)
    warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")  # slower, not wrong
    warnings.filterwarnings("ignore", message="`broadcast_buffers` is deprecated")  # its successor is too new
    # The distillation head gets no gradient while the full network trains alone. The queue is the same everywhere.
    several = DDPStrategy(find_unused_parameters=True, broadcast_buffers=False)
    try:
        return Fabric(
            accelerator=accelerator,
            devices=local,
            num_nodes=machines,
            precision=precision,  # type: ignore[arg-type]
            strategy=several if local * machines > 1 else "auto",
        )
    except (ValueError, RuntimeError) as error:  # Fabric's own messages name what this machine lacks
        raise UserError(f"cannot run on {local} x {accelerator}: {error}") from None


def is_first(fabric: Fabric) -> bool:
    """Return whether this is the process that writes; unlike `is_global_zero` it is right before the launch."""
    environment = getattr(fabric.strategy, "cluster_environment", None)
    return environment is None or environment.local_rank() == environment.node_rank() == 0


def is_first_rank() -> bool:
    """Return whether this is the process that speaks, for those who have no Fabric at hand."""
    return not getattr(rank_zero_only, "rank", 0)


def any_of(fabric: Fabric, mine: bool) -> bool:
    """Return whether it holds for any process; all must ask together."""
    if fabric.world_size == 1:
        return mine
    return bool(fabric.all_reduce(torch.tensor(float(mine), device=fabric.device), reduce_op="sum"))


@contextmanager
def first_alone(fabric: Fabric) -> Iterator[bool]:
    """Let the first process work alone, for as long as it takes, while the others wait at the end of the block.

    A barrier would end them after half an hour. All must enter together.

    Yields:
        Whether this is the process that works.

    Raises:
        UserError: The first process has failed; it says why.
    """
    if fabric.world_size == 1:
        yield True
        return
    key = f"us3l/first_alone/{next(_turns)}"
    store = distributed_c10d._get_default_store()
    if not fabric.is_global_zero:
        yield False
        while not store.check([key]):
            time.sleep(POLL)
        if store.get(key) != b"done":
            raise UserError("the first process of the run has ended: see its error message")
        return
    try:
        yield True
    except BaseException:
        store.set(key, "failed")
        raise
    store.set(key, "done")
