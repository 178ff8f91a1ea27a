"""One width as a file of its own, proved against the network it came from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from us3l.errors import UserError
from us3l.files import replacing
from us3l.slimmable import Slimmable
from us3l.storage import describe

Format = Literal["torch", "safetensors"]
SUFFIXES: dict[Format, str] = {"torch": ".pt2", "safetensors": ".safetensors"}
TOLERANCE = 1e-4


def export(net: Slimmable, width: float, path: Path, kind: Format, size: int, overwrite: bool = False) -> None:
    """Write the network of one width, read it back, and compare its outputs.

    "torch" is a program of torch.export, which runs without this package and takes any batch size. "safetensors" is
    the plain network's state dict; its metadata say how to build that network.
    """
    if path.exists() and not overwrite:
        raise UserError(f"{path} already exists: move it, or export with --overwrite")
    if not net.calibrated(width):
        raise UserError(f"width {width:g} is not calibrated: call us3l.calibrate(net, images) and save the model again")
    network = net.carve(width)
    images = torch.randn(3, 3, size, size, generator=torch.Generator().manual_seed(0))
    with replacing(path) as temporary:
        if kind == "torch":
            save_program(network, images, temporary)
            found = read_program(temporary, images)
        else:
            metadata = {
                "width": width,
                "feature_shape": list(network(images).shape[1:]),
                **describe(net.family),
                **net.metadata,
            }
            state = {name: tensor.contiguous() for name, tensor in network.state_dict().items()}
            save_file(state, temporary, {"us3l": json.dumps(metadata)})
            found = read_state(net.family(width).eval(), temporary, images)
        with torch.no_grad():
            difference = (found - network(images)).abs().max().item()
        if not difference <= TOLERANCE:
            raise UserError(f"the exported network differs from the original by {difference:g}; nothing was written")


def save_program(network: nn.Module, images: Tensor, path: Path) -> None:
    program = torch.export.export(network, (images,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    torch.export.save(program, path)


def read_program(path: Path, images: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.export.load(path).module()(images)


def read_state(network: nn.Module, path: Path, images: Tensor) -> Tensor:
    network.load_state_dict(load_file(path))
    with torch.no_grad():
        return network(images)
