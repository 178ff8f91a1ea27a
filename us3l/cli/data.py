"""Loading images and models for the commands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from us3l.data.batches import Images, whole_side
from us3l.data.sources import ImageSet, Split, find, fits_memory, load
from us3l.errors import UserError
from us3l.progress import Counting
from us3l.slimmable import Slimmable

STREAM_FROM = 8 * 2**30
NAMED = 5  # damaged images to name on the screen


def load_images(
    console: Console, data: str, split: Split, size: int, limit: int | None = None, root: Path | None = None
) -> ImageSet:
    """Load with progress, and tell of damaged images."""
    with Counting(console, f"loading {data}") as counting:
        image_set = load(data, split, size, limit, counting.so_far, root)
    tell_damaged(console, data, image_set.skipped)
    return image_set


def open_images(
    console: Console,
    data: str,
    split: Split,
    size: int,
    limit: int | None = None,
    root: Path | None = None,
    stream: bool = False,
    memory_gib: float = 4.0,
) -> Images:
    """Images for evaluation at `size`: in memory, or as files if there are too many for that."""
    side = whole_side(size)
    if data != "digits":
        files = find(data, split, limit, root)
        if stream or not fits_memory(files.nbytes(side), int(memory_gib * 2**30)):
            console.print(f"{files.name}: {len(files):,} images, read anew whenever they are needed", highlight=False)
            return files
    return load_images(console, data, split, side, limit, root)


def training_images(console: Console, data: str, size: int, limit: int | None, stream: bool) -> Images:
    """Images for pre-training: in memory, or as files when asked for or when they are more than `STREAM_FROM` bytes."""
    if data != "digits":
        files = find(data, "pretrain", limit)
        # A fixed bound, not the memory at hand: a run must resume as it began.
        if stream or files.nbytes(size) > STREAM_FROM:
            return files
    return load_images(console, data, "pretrain", size, limit)


def tell_damaged(console: Console, data: str, names: Sequence[str]) -> None:
    if names:
        console.print(f"skipped {len(names)} damaged images of {data}:", style="yellow")
        for name in names[:NAMED]:
            console.print(f"  {name}", markup=False, highlight=False, soft_wrap=True)
        if len(names) > NAMED:
            console.print(f"  and {len(names) - NAMED} more")


def load_model(path: Path) -> Slimmable:
    """The network in a run's folder, or in a model's own."""
    from us3l.storage import load as load_network

    if not path.exists():
        raise UserError(f"there is no folder {path}")
    if (path / "config.yaml").exists() and not (path / "model").exists():
        raise UserError(f"{path} is not finished: go on with us3l pretrain --out {path} --resume")
    return load_network(path / "model" if (path / "model").is_dir() else path)


def image_size(net: Slimmable) -> int:
    """The side of the images that a network was trained on."""
    try:
        return int(net.metadata["preprocessing"]["size"])
    except (KeyError, TypeError, ValueError):
        fallback = 32 if getattr(net.family, "stem", None) == "cifar" else 224
        return getattr(net.family, "image_size", fallback)
