"""Write the built-in network as one file: `python -m tools.builtin.release --run RUN --out FILE`.

The file has the averaged weights and the source's classifier in half precision, and batch-norm statistics for eleven
widths at four sizes, collected on the very weights that the file holds. Its names:

    features.0.0.weight                          a weight of the full network; other widths own its leading block
    classifier.weight, classifier.bias           ImageNet's classes from features, as the source has them
    0.25x@128/features.0.1.running_mean          a statistic of one width at one size
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import us3l
from tools.builtin.elastic import copy_into, sorted_source
from tools.builtin.images import SOURCES, read_images
from tools.builtin.measure import HeldOut
from tools.builtin.recipe import Subnet, subnet_name
from tools.builtin.teacher import Teacher
from tools.builtin.train import WEIGHTS

WIDTHS = (0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 1.0)
SIZES = (96, 128, 160, 224)
LARGEST = 12_000_000
"""Bytes that the file may have."""


@dataclass(frozen=True)
class Command:
    """Write the built-in network of a run."""

    run: Path
    """Folder of the run."""
    out: Path = Path("us3l/builtin/weights.safetensors")
    data: Path = Path("../shared/data")


def write(path: Path, net: us3l.Slimmable, held_out: HeldOut, subnets: Sequence[Subnet], facts: dict[str, Any]) -> None:
    """Round a network's weights to half precision, collect the statistics of sub-networks, and write it all.

    Args:
        path: The file.
        net: The network, whose weights are rounded in place.
        held_out: Whose images are learned from.
        subnets: Widths and sizes to collect statistics for.
        facts: What the file's metadata say of its making.
    """
    tensors: dict[str, Tensor] = {name: one.detach().half() for name, one in net.full.named_parameters()}
    copy_into(net, tensors)
    for width, size in subnets:
        network = held_out.calibrated(net, width, size)
        place = subnet_name(width, size)
        statistics = {name: one for name, one in network.state_dict().items() if "running" in name}
        tensors |= {f"{place}/{name}": one.float() for name, one in statistics.items()}
    tensors["classifier.weight"] = held_out.teacher.weight.half()
    tensors["classifier.bias"] = held_out.teacher.bias.half()
    path.parent.mkdir(parents=True, exist_ok=True)
    plain = {name: one.contiguous() for name, one in tensors.items()}
    save_file(plain, path, {name: json.dumps(value) for name, value in facts.items()})
    if path.stat().st_size > LARGEST:
        raise ValueError(f"{path} has {path.stat().st_size:,} bytes, more than {LARGEST:,}: leave out some statistics")


def read(path: Path) -> tuple[us3l.Slimmable, dict[str, Any]]:
    """Return the network in a file, without statistics, and the facts of its making."""
    tensors = load_file(path)
    net = us3l.create("mobilenet_v2")
    copy_into(net, {name: one.float() for name, one in tensors.items()})
    with safe_open(path, "pt") as file:
        facts = {name: json.loads(value) for name, value in (file.metadata() or {}).items()}
    return net, facts


def read_subnet(path: Path, width: float, size: int) -> nn.Module:
    """Return the plain network of a width with the statistics that the file has for a size."""
    net, _ = read(path)
    place = subnet_name(width, size) + "/"
    statistics = {name.removeprefix(place): one for name, one in load_file(path).items() if name.startswith(place)}
    if not statistics:
        raise ValueError(f"{path} has no statistics of {place[:-1]}")
    net.set_statistics(width, statistics)
    return net.carve(width)


def main() -> None:
    command = tyro.cli(Command)
    torch.set_num_threads(1)
    state = torch.load(command.run / "state.pt", weights_only=True)
    net = sorted_source(command.data / WEIGHTS)
    copy_into(net, state["average"])
    images, teacher = read_images(command.data), Teacher(command.data / WEIGHTS)
    held_out = HeldOut(images, images, teacher)
    subnets = [(width, size) for size in SIZES for width in WIDTHS]
    sources = [source.folder for source in SOURCES if (command.data / source.folder).is_dir()]
    facts = {"step": state["step"], "recipe": state["recipe"], "images": len(images), "sources": sources}
    write(command.out, net, held_out, subnets, facts)
    print(
        f"{command.out}: {command.out.stat().st_size / 1e6:.1f} MB, {len(subnets)} sub-networks, step {state['step']}"
    )


if __name__ == "__main__":
    main()
