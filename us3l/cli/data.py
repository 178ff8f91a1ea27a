"""Loading images and models for the commands."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from us3l.data.sources import ImageSet, Split, load
from us3l.errors import UserError
from us3l.progress import Counting
from us3l.slimmable import Slimmable

NAMED = 5  # damaged images to name on the screen


def load_images(console: Console, data: str, split: Split, size: int, limit: int | None = None) -> ImageSet:
    """Load with progress, and tell of damaged images."""
    with Counting(console, f"loading {data}") as counting:
        image_set = load(data, split, size, limit, counting.so_far)
    if image_set.skipped:
        console.print(f"skipped {len(image_set.skipped)} damaged images of {data}:", style="yellow")
        for name in image_set.skipped[:NAMED]:
            console.print(f"  {name}", markup=False, highlight=False, soft_wrap=True)
        if len(image_set.skipped) > NAMED:
            console.print(f"  and {len(image_set.skipped) - NAMED} more")
    return image_set


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
