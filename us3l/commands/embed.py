"""`us3l embed`"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from us3l.commands.parse import RunArgument, parse
from us3l.run.folder import Product
from us3l.system.devices import Device
from us3l.width import Width

DataArgument = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")]


@dataclass(frozen=True)
class Embed:
    """Embed every image of a folder, of parquet files or of shards, at one width, into one file.

    FILE ends with .parquet (the columns file, embedding and label), .npz (arrays of these names) or .csv. A command
    that was stopped or killed goes on where it was when it is typed again, and its file is the same. Images that cannot
    be read are left out, and named in FILE.damaged.txt.

    DATA is a folder, a parquet file, a shard, an image, or a known name; see us3l evaluate.

    examples:
      us3l embed runs/photos photos/ --out photos.parquet
      us3l embed runs/photos photos/ --width 0.25 --out photos.npz
      us3l embed runs/photos photos/ --latency-ms 5 --out photos.parquet
      us3l embed runs/photos photos/ --width 0.25 --space shared --out queries.npz
      us3l embed runs/photos/export photos/ --width 0.37 --backend onnx --out photos.csv
    """

    run: RunArgument
    """The folder of a run, a model or a bundle."""
    data: DataArgument
    """Images to embed."""
    out: Path
    """The file to write: .parquet, .npz or .csv."""
    width: Width | None = None
    """Width of the network (default: the widest)."""
    latency_ms: float | None = None
    """Take the best width within this many milliseconds per image, by us3l profile; a bundle is timed now."""
    space: Literal["own", "shared"] = "own"
    """"shared" gives embeddings that can be compared across widths: queries at 0.25x find what was embedded at 1x."""
    space_data: str | None = None
    """Images to fit that space on, without labels (default: those that the run was trained on)."""
    split: Literal["every", "train", "test"] = "every"
    """Which images, where there is a training and a test part."""
    data_root: Path | None = None
    """Folder that holds named data sets (default: the environment variable US3L_DATA, else ./data)."""
    weights: Product | None = None
    """Which weights: "student" or "teacher" (default: those of the run's model). See us3l evaluate."""
    backend: Literal["auto", "torch", "onnx", "openvino"] = "auto"
    """What runs the network (auto: PyTorch for runs; for bundles what they hold)."""
    device: Device = "auto"
    """Device that PyTorch computes on."""
    threads: int | None = None
    """Threads that compute (default: PyTorch's own number)."""
    int8: bool | None = None
    """Which files of a bundle that has both kinds."""
    overwrite: bool = False
    """Start again, and replace a file of that name."""


def main(arguments: list[str]) -> None:
    command = parse(Embed, "embed", arguments)
    from us3l.commands.screen import CommandScreen
    from us3l.data.sources import tell_damaged
    from us3l.verbs import embed

    screen = CommandScreen()
    embedded = embed(**vars(command), progress=screen)
    tell_damaged(screen, command.data, embedded.damaged)
    if embedded.computed:
        screen.say(
            f"{embedded.width:g}x: {embedded.computed:,} images in {embedded.seconds:.1f} s, "
            f"{embedded.images_per_s:.3g} images/s; written: {embedded.path}"
        )
