"""`us3l download`: known data sets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from us3l.commands.command import Command, command
from us3l.setting_types import NamedData, Positional

if TYPE_CHECKING:
    from us3l.commands.screen import CommandScreen


@dataclass(frozen=True)
class Download(NamedData, Command):
    """Download data sets by name with torchvision, which verifies their checksums.

    NAME is cifar10, cifar100, flowers102, pets, dtd or voc. `imagenet` unpacks the archives that you have put into
    ROOT/imagenet. Put COCO into ROOT/coco yourself.

    examples:
      us3l download cifar10
      us3l download flowers102 pets dtd --data-root /data
    """

    names: Annotated[tuple[str, ...], Positional("NAME")]
    """Data sets to fetch."""


@command(Download)
def download(settings: Download) -> dict[str, Path]:
    """Download data sets by name, and return the folder of each."""
    from us3l.data import datasets

    return {name: datasets.download(name, settings.data_root) for name in settings.names}


def main(settings: Download, screen: CommandScreen) -> None:
    from us3l.data.datasets import open_named

    for name, folder in download.with_settings(settings).items():
        screen.say(f"{folder}: {len(open_named(name, settings.data_root)):,} images")
