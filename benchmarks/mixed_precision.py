"""Mixed precision on a CPU: `python -m benchmarks.mixed_precision`.

Forward and backward of backbones in bf16-mixed beside 32 bits, with and without `learned_in_32_bits`. One thread,
taking turns, processor time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from unittest.mock import patch

import torch
from torch import Tensor, nn

from benchmarks.timing import Job, best_seconds
from us3l.families import family, options_for
from us3l.system.devices import keep_freed_memory

BATCH, SIZE = 64, 96
BACKBONES: dict[str, tuple[str, dict[str, int]]] = {
    "ResNet-18": ("resnet18", {}),
    "MobileNetV2": ("mobilenet_v2", {}),
    "EfficientNet-B0": ("efficientnet_b0", {}),
    "ViT-Tiny, half as wide, 64 tokens, 6 heads of 16 channels": ("vit_tiny", {"patch": 12, "base": 32, "heads": 6}),
}
"""Their names, and their options."""


def learn(network: nn.Module, images: Tensor, mixed: bool) -> None:
    """A forward and a backward pass."""
    with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
        network(images).float().square().mean().backward()


def learn_plainly(network: nn.Module, images: Tensor) -> None:
    """The same in mixed precision, in bfloat16 wherever autocast would have it."""
    convolutions, attention = (f"us3l.families.{module}.learned_in_32_bits" for module in ("mixed_precision", "vit"))
    with patch(convolutions, as_it_comes), patch(attention, as_it_comes):
        learn(network, images, mixed=True)


def as_it_comes(operation: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    return operation(*inputs)


def main() -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    torch.manual_seed(0)
    images = torch.randn(BATCH, 3, SIZE, SIZE).contiguous(memory_format=torch.channels_last)
    print("| network | 32 bits, s | bf16-mixed | bf16-mixed, everything in bfloat16 |")
    print("| --- | --- | --- | --- |")
    for label, (name, changes) in BACKBONES.items():
        options = options_for(name, "imagenet", SIZE) | changes
        made = family(name, **options)(1.0)
        network = made.to(memory_format=torch.channels_last).train()
        rivals: dict[str, Job] = {
            "32": partial(learn, network, images, mixed=False),
            "mixed": partial(learn, network, images, mixed=True),
            "plain": partial(learn_plainly, network, images),
        }
        best = best_seconds(rivals, turns=3, clock=time.process_time)
        ratios = (f"{best[kind] / best['32']:.2f} of the time" for kind in ("mixed", "plain"))
        print(f"| {label} | {best['32']:.2f} | {' | '.join(ratios)} |", flush=True)


if __name__ == "__main__":
    main()
