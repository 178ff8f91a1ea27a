"""Put the built-in network into the package: `python -m tools.builtin.release --run RUN`.

It is a model's folder like any other, with the averaged weights in half precision, and batch-norm statistics for eleven
widths at the model's own image size, collected on the very weights that the file holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro
from safetensors.torch import load_file, save_file

import us3l
from tools.builtin.elastic import copy_into, sorted_source
from tools.builtin.images import SOURCES, read_images
from tools.builtin.measure import HeldOut
from tools.builtin.teacher import Teacher
from tools.builtin.train import WEIGHTS
from us3l.builtin import PACKAGED
from us3l.builtin import WEIGHTS as WEIGHTS_FILE
from us3l.data.preprocessing import Preprocessing

WIDTHS = (0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 1.0)
SIZE = 128
LARGEST = 12_000_000
"""Bytes that the folder may have."""


@dataclass(frozen=True)
class Command:
    """Put the network of a run into the package."""

    run: Path
    """Folder of the run."""
    out: Path = PACKAGED
    data: Path = Path("../shared/data")


def write(
    folder: Path, net: us3l.Slimmable, held_out: HeldOut, widths: Sequence[float], size: int, training: dict[str, Any]
) -> None:
    """Round a network's weights to half precision, collect the statistics of some widths, and save it.

    Args:
        folder: Of the model.
        net: The network, whose weights are rounded in place.
        held_out: Whose images are learned from.
        widths: Those to collect statistics for.
        size: Side of the images, in pixels.
        training: What the model says of its making.
    """
    copy_into(net, {name: one.detach().half() for name, one in net.full.named_parameters()})
    for width in widths:
        held_out.calibrated(net, width, size)
    net.metadata |= {"preprocessing": Preprocessing.usual(size).to_plain(), "training": training}
    net.save(folder, overwrite=True)
    path = folder / WEIGHTS_FILE
    halves = {name: one.half() if one.is_floating_point() else one for name, one in load_file(path).items()}
    save_file(halves, path)
    if (total := sum(file.stat().st_size for file in folder.glob("*.safetensors"))) > LARGEST:
        raise ValueError(f"{folder} has {total:,} bytes, more than {LARGEST:,}: leave out some widths")


def main() -> None:
    command = tyro.cli(Command)
    torch.set_num_threads(1)
    state = torch.load(command.run / "state.pt", weights_only=True)
    net = sorted_source(command.data / WEIGHTS)
    copy_into(net, state["average"])
    images, teacher = read_images(command.data), Teacher(command.data / WEIGHTS)
    sources = [source.folder for source in SOURCES if (command.data / source.folder).is_dir()]
    training = {"steps": state["step"], "images": len(images), "seed": state["recipe"]["seed"], "sources": sources}
    write(command.out, net, HeldOut(images, images, teacher), WIDTHS, SIZE, training)
    print(f"{command.out}: {len(WIDTHS)} widths at {SIZE} pixels, step {state['step']}")


if __name__ == "__main__":
    main()
