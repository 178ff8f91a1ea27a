"""`us3l export`"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from us3l.cli.parse import parse


@dataclass(frozen=True)
class Export:
    """A plain network of one width as a file, checked against the network it came from.

    "torch" is a program of torch.export that runs without us3l; "safetensors" is the plain network's state dict.

    examples:
      us3l export runs/demo --width 0.37
      us3l export runs/demo --width 0.25 0.5 --format safetensors
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run's folder, or a model's."""
    width: tuple[float, ...]
    """One width or several."""
    format: Literal["torch", "safetensors"] = "torch"
    """Kind of file."""
    out: Path | None = None
    """Folder for the files (default: export/ in the run's folder)."""
    overwrite: bool = False
    """Replace files of the same name."""


def main(arguments: list[str]) -> int:
    command = parse(Export, "export", arguments)
    from us3l.cli.data import image_size, load_model
    from us3l.deploy.export import SUFFIXES, export

    net = load_model(command.run)
    size = image_size(net)
    name = getattr(net.family, "name", "network")
    for width in command.width:
        net.check(width)
    for width in command.width:
        path = (command.out or command.run / "export") / f"{name}-{width:g}x{SUFFIXES[command.format]}"
        export(net, width, path, command.format, size, command.overwrite)
        print(f"{path}: {path.stat().st_size / 1e6:.2f} MB, outputs equal the original's")
    return 0
