"""`make bench`: how close the shared network is to plain ones. See README.md beside this file."""

from __future__ import annotations

import json
import platform
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torchvision
from rich.console import Console
from rich.table import Table
from torch import nn
from torchvision.transforms import v2

import us3l
from benchmarks.timing import best_seconds
from us3l.data.spec import Views
from us3l.data.views import two_views

BATCH = 32


def training(
    network: Callable[[torch.Tensor], torch.Tensor], owner: nn.Module, images: torch.Tensor
) -> Callable[[], None]:
    def job() -> None:
        owner.zero_grad()
        network(images).square().mean().backward()

    return job


def against_torchvision() -> tuple[float, float]:
    """The full network, forward and backward, against torchvision's."""
    images = torch.randn(8, 3, 64, 64)
    ours = us3l.create("resnet18", num_classes=1000)
    theirs = torchvision.models.resnet18()
    best = best_seconds({"ours": training(ours, ours, images), "rival": training(theirs, theirs, images)})
    return best["ours"], best["rival"]


def against_native(width: float) -> tuple[float, float]:
    """A sub-network on the shared weights, forward and backward, against the same network with its own weights."""
    images = torch.randn(BATCH, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    net = us3l.create("resnet18", stem="cifar", base=32).to(memory_format=torch.channels_last)
    native = net.carve(width).train().to(memory_format=torch.channels_last)
    best = best_seconds(
        {"ours": training(lambda x: net(x, width=width), net, images), "rival": training(native, native, images)}
    )
    return best["ours"], best["rival"]


def augmentation() -> tuple[float, float]:
    """Two views of a batch on one thread, against torchvision's v2 transforms image by image."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    images = torch.randint(0, 256, (128, 3, 32, 32), dtype=torch.uint8)
    transform = v2.Compose(
        [
            v2.RandomResizedCrop(32, scale=(0.2, 1.0), antialias=True),
            v2.RandomHorizontalFlip(),
            v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
            v2.RandomGrayscale(0.2),
            v2.ToDtype(torch.float32, scale=True),
        ]
    )
    generator = torch.Generator().manual_seed(0)
    best = best_seconds(
        {
            "ours": lambda: two_views(images, Views(), generator),
            "rival": lambda: [(transform(image), transform(image)) for image in images],
        },
        turns=3,
    )
    torch.set_num_threads(threads)
    return best["ours"], best["rival"]


def main() -> None:
    warnings.filterwarnings("ignore", message="width .* is not calibrated")
    jobs: dict[str, Callable[[], tuple[float, float]]] = {
        "full network / torchvision's, forward + backward": against_torchvision,
        **{
            f"{width}x on shared weights / the same network alone, forward + backward": (
                lambda width=width: against_native(width)
            )
            for width in (0.75, 0.5, 0.25)
        },
        "two views of a batch / torchvision v2 image by image": augmentation,
    }
    console = Console()
    table = Table("what", "ours, ms", "rival, ms", "ratio")
    rows = []
    for name, job in jobs.items():
        console.print(f"measuring {name}")
        ours, rival = job()
        table.add_row(name, f"{ours * 1e3:.1f}", f"{rival * 1e3:.1f}", f"{ours / rival:.2f}")
        rows.append({"what": name, "ours_s": ours, "rival_s": rival, "ratio": ours / rival})
    console.print(table)
    result = {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "machine": platform.processor(),
        "rows": rows,
    }
    path = Path("benchmarks/latest.json")
    path.write_text(json.dumps(result, indent=2) + "\n")
    console.print(f"written: {path}")


if __name__ == "__main__":
    main()
