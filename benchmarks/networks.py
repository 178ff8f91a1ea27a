"""The shared network against plain ones: forward and backward of two views, as in a step; features."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torchvision
from torch import Tensor, nn

import us3l
from benchmarks.timing import Row, best_of, best_seconds
from us3l.slimmable import Slimmable

WIDTHS = (0.75, 0.5, 0.25)
BATCH = 128


def rows() -> Iterator[Row]:
    yield from full_networks()
    yield from sub_networks()
    yield from features()


def full_networks() -> Iterator[Row]:
    """At width 1, against torchvision's own."""
    for name in ("resnet18", "mobilenet_v2"):
        yield best_of(partial(against_torchvision, name))


def against_torchvision(name: str) -> Row:
    images = torch.randn(16, 3, 96, 96).contiguous(memory_format=torch.channels_last)
    ours = us3l.create(name, num_classes=1000).to(memory_format=torch.channels_last)
    theirs = getattr(torchvision.models, name)().to(memory_format=torch.channels_last)
    rivals = {"ours": training(ours, ours, [images]), "rival": training(theirs, theirs, [images])}
    best = best_seconds(rivals, turns=10)
    return Row(f"{name} at 1x / torchvision's", best["ours"] * 1e3, best["rival"] * 1e3, "ms", 1.02)


def sub_networks() -> Iterator[Row]:
    """On the shared weights, against the same network with weights of its own."""
    for name in ("resnet18", "mobilenet_v2", "vit_tiny"):
        for width in WIDTHS:
            yield best_of(partial(against_native, name, width))


def against_native(name: str, width: float) -> Row:
    net = slimmable(name)
    views = [torch.randn(BATCH, 3, 32, 32).contiguous(memory_format=torch.channels_last) for _ in range(2)]
    native = net.carve(width).train().to(memory_format=torch.channels_last)
    rivals = {"ours": training(partial(net.bind, width), net, views, bind=True)}
    rivals["rival"] = training(native, native, views)
    best = best_seconds(rivals, turns=4)
    what = f"{name} at {width:g}x on shared weights / the same alone"
    return Row(what, best["ours"] * 1e3, best["rival"] * 1e3, "ms", 1.05)


def features() -> Iterator[Row]:
    """Images a second, against what the multiply-accumulates promise."""
    net = slimmable("resnet18").eval()
    images = torch.randn(250, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    us3l.calibrate(net, images[:64], (1.0, *WIDTHS))
    networks = {width: net.at(width) for width in (1.0, *WIDTHS)}
    with torch.inference_mode():
        best = best_seconds({str(width): partial(network, images) for width, network in networks.items()}, turns=4)
    macs = {width: us3l.cost(network, (3, 32, 32)).macs for width, network in networks.items()}
    for width, target in ((0.75, 0.7), (0.5, 0.7), (0.25, 0.45)):
        proportional = best["1.0"] * macs[width] / macs[1.0]
        yield Row(
            f"resnet18 features at {width:g}x: share of the speed-up by MACs",
            best[str(width)] * 1e3,
            proportional * 1e3,
            "ms for 250",
            target,
            "at least",
            f"{250 / best[str(width)]:.0f} images/s, {250 / best['1.0']:.0f} at 1x",
        )


def slimmable(name: str) -> Slimmable:
    torch.manual_seed(0)
    options = {"image_size": 32, "patch": 4} if name.startswith("vit") else {"stem": "cifar"}
    return us3l.create(name, **options).to(memory_format=torch.channels_last)


def training(
    network: Callable[..., Any], owner: nn.Module, views: list[Tensor], bind: bool = False
) -> Callable[[], None]:
    """Forward and backward of all views; a shared network is bound once for them, as in training."""

    def job() -> None:
        owner.zero_grad()
        run = network() if bind else network
        torch.stack([run(view).square().mean() for view in views]).sum().backward()

    return job
