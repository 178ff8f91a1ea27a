"""`us3l download`"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from us3l.commands.parse import parse


@dataclass(frozen=True)
class Download:
    """Download data sets by name with torchvision, which verifies their checksums.

    NAME is cifar10, cifar100, flowers102, pets, dtd or voc. `imagenet` unpacks the archives that you have put into
    ROOT/imagenet. Put COCO into ROOT/coco yourself.

    examples:
      us3l download cifar10
      us3l download flowers102 pets dtd --data-root /data
    """

    names: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
    """Data sets to fetch."""
    data_root: Path | None = None
    """Folder to put them into (default: the environment variable US3L_DATA, else ./data)."""


def main(arguments: list[str]) -> None:
    command = parse(Download, "download", arguments)
    from us3l.data.datasets import download, open_named
    from us3l.system.console import Console

    for name in command.names:
        folder = download(name, command.data_root)
        Console().say(f"{folder}: {len(open_named(name, command.data_root)):,} images")
