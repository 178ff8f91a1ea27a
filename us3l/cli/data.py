"""Loading images and models for the commands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from us3l.data.batches import Images
from us3l.data.preprocessing import Preprocessing
from us3l.data.sources import ImageFiles, ImageSet, Split, decode_all, find, fits_memory, load
from us3l.progress import Counting
from us3l.slimmable import Slimmable

STREAM_FROM = 8 * 2**30
NAMED = 5  # damaged images to name on the screen


def load_images(
    console: Console, data: str, split: Split, size: int, limit: int | None = None, root: Path | None = None
) -> ImageSet:
    """Load with progress, and tell of damaged images."""
    if data == "digits":
        return load(data, split, size, limit)
    return decode_images(console, find_images(console, data, split, limit, root), size)


def find_images(console: Console, data: str, split: Split, limit: int | None, root: Path | None = None) -> ImageFiles:
    with Counting(console, f"looking through the shards of {data}") as counting:
        return find(data, split, limit, root, counting.so_far)


def decode_images(console: Console, files: ImageFiles, size: int) -> ImageSet:
    with Counting(console, f"loading {files.name}") as counting:
        image_set = decode_all(files, size, counting.so_far)
    tell_damaged(console, files.name, image_set.skipped)
    return image_set


def open_images(
    console: Console,
    data: str,
    split: Split,
    preprocessing: Preprocessing,
    limit: int | None = None,
    root: Path | None = None,
    stream: bool = False,
    memory_gib: float = 4.0,
) -> Images:
    """Images for evaluation: in memory, or as files if there are too many for that."""
    side = preprocessing.resize
    if data == "digits":
        return load(data, split, side, limit)
    files = find_images(console, data, split, limit, root)
    if stream or not fits_memory(files.nbytes(side), int(memory_gib * 2**30)):
        console.print(f"{files.name}: {len(files):,} images, read anew whenever they are needed", highlight=False)
        return files
    return decode_images(console, files, side)


def training_images(console: Console, data: str, size: int, limit: int | None, stream: bool) -> Images:
    """Images for pre-training: in memory, or as files when asked for or when they are more than `STREAM_FROM` bytes."""
    if data == "digits":
        return load(data, "pretrain", size, limit)
    files = find_images(console, data, "pretrain", limit)
    # A fixed bound, not the memory at hand: a run must resume as it began.
    return files if stream or files.nbytes(size) > STREAM_FROM else decode_images(console, files, size)


def tell_damaged(console: Console, data: str, names: Sequence[str]) -> None:
    if names:
        console.print(f"skipped {len(names)} damaged images of {data}:", style="yellow")
        for name in names[:NAMED]:
            console.print(f"  {name}", markup=False, highlight=False, soft_wrap=True)
        if len(names) > NAMED:
            console.print(f"  and {len(names) - NAMED} more")


def load_model(path: Path) -> Slimmable:
    """The network in a run's folder, or in a model's own."""
    from us3l.run import Run

    return Run(path).network
