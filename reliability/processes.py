"""A few steps of several methods, by one process or by two that share each batch.

    python -m reliability.processes FOLDER COUNT FILE [CASE ...]

trains on the images in a folder and keeps losses, indices and parameters after the steps of each case in a file.
"""

from __future__ import annotations

import copy
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import distributed, nn

from reliability.children import end_of, start
from us3l.data.sources import ImageFiles, ImageSet, find, load
from us3l.distributed.launching import make_fabric
from us3l.training.recipes import MINI, Network, Optimiser, Recipe
from us3l.training.run_config import Machine
from us3l.training.trainer import Trainer

STEPS = 3
SMALL = replace(
    MINI,
    network=Network(base=8),
    objective=replace(MINI.objective, hidden=16, predictor=16, dim=8, queue=24, max_first=False, samples=2),
    optimiser=Optimiser(lr=0.05),
    views=replace(MINI.views, size=8),
    batch_size=8,
    max_steps=STEPS,
)
VIT = replace(SMALL, network=Network("vit_tiny", base=12, heads=1, depth=2, patch=4))
APART = replace(SMALL.objective, update="per-width")
MIXED = replace(APART, samples=3, mixed=1.0, mixed_depth=0.5)
SYNCED = {"sync_bn": True}
CASES: dict[str, tuple[Recipe, dict[str, Any]]] = {
    "vit": (VIT, {}),
    "in memory": (replace(VIT, objective=replace(VIT.objective, sub_crop=0.6)), {}),
    "vit simclr": (VIT.with_method("us-simclr"), {}),
    "simclr": (SMALL.with_method("us-simclr"), SYNCED),
    "per width": (replace(SMALL, objective=APART), SYNCED),
    "mixed depth": (replace(SMALL, objective=MIXED), SYNCED),
    "moco v3": (SMALL.with_method("us3l-mocov3"), SYNCED),
    "queue": (replace(SMALL, objective=replace(SMALL.objective, base_loss="moco")), SYNCED),
    "supervised": (SMALL.with_method("us-net"), SYNCED),
    "accumulated": (VIT.with_method("us-byol").with_objective(sub_crop=0.6), {"accumulate": 2}),
    "shards": (SMALL.with_method("us-simsiam"), {}),
}
"""What two processes train, and how. One process does the same in one piece; but `shards` in two, for the mean of both
halves of a batch, each with its own batch norm, is what two processes are to compute."""
ALONE: dict[str, dict[str, Any]] = {"shards": {"accumulate": 2}}


def run_case(name: str, folder: str, count: int = 1, state: dict[str, Any] | None = None) -> dict[str, Any]:
    """Train a case as one of so many processes, from a state on if one is given.

    Several go on from their own state before the last step, as if resumed; it is kept.
    """
    recipe, settings = CASES[name]
    machine = Machine("cpu", **(settings if count > 1 else ALONE.get(name, {})))
    fabric = new_fabric(machine)
    fabric.launch()
    images = load(folder, "all", size=8) if name == "in memory" else find(folder, "all")
    trainer = new_trainer(recipe, images, fabric, machine)
    losses, indices = [], []
    if state:
        trainer.load_state(state)
    while trainer.step < STEPS:
        if count > 1 and trainer.step == STEPS - 1:
            state = trainer.state()
            trainer = new_trainer(recipe, images, fabric, machine)
            trainer.load_state(copy.deepcopy(state))  # its optimiser goes on with the tensors that it is given
        epoch, number = divmod(trainer.step, trainer.per_epoch)
        indices.append(trainer.epoch(epoch)[number].indices)
        losses.append(fabric.all_reduce(torch.stack(trainer.train_step().losses), reduce_op="mean"))
    return {"losses": losses, "indices": indices, "learner": trainer.state()["learner"], "before last step": state}


def new_fabric(machine: Machine) -> Fabric:
    """In double precision, in which rounding cannot grow into a difference within a few steps."""
    return make_fabric(machine.accelerator, machine.devices, "64-true")


def new_trainer(recipe: Recipe, images: ImageSet | ImageFiles, fabric: Fabric, machine: Machine) -> Trainer:
    trainer = Trainer(recipe, images, fabric, machine)
    if recipe.network.backbone.startswith("vit"):  # which has no batch norm, but its heads do
        for head in (trainer.learner.projector, trainer.learner.h, trainer.learner.g, trainer.learner.teacher):
            without_norms(head)
    return trainer


def without_norms(module: nn.Module | None) -> None:
    for parent in [] if module is None else module.modules():
        for name, child in parent.named_children():
            if isinstance(child, nn.BatchNorm1d):
                setattr(parent, name, nn.Identity())


def run_cases(names: list[str], folder: str, count: int, file: Path) -> int:
    torch.set_num_threads(1)
    found = {name: run_case(name, folder, count) for name in names}
    if distributed.get_rank() == 0:
        torch.save(found, file)
    return 0


def main() -> int:
    folder, count, file, names = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:] or list(CASES)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    children = [
        start(
            lambda: run_cases(names, folder, count, file),
            file.with_suffix(f".{rank}.log"),
            as_torchrun(rank, count, port),
        )
        for rank in range(count)
    ]
    return max(map(abs, map(end_of, children)))


def as_torchrun(rank: int, count: int, port: int) -> dict[str, str]:
    """The environment that torchrun gives its workers on one machine."""
    values: dict[str, object] = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "GROUP_RANK": 0,
        "WORLD_SIZE": count,
        "LOCAL_WORLD_SIZE": count,
    }
    values |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "none"}
    return {name: str(value) for name, value in values.items()}


if __name__ == "__main__":
    sys.exit(main())
