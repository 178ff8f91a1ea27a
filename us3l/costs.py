"""What a network costs: parameters, multiply-accumulates, bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import inf, prod
from typing import TYPE_CHECKING, Any, overload

if TYPE_CHECKING:  # a `Cost` is read where nobody waits for torch
    from torch import nn

    from us3l.slimmable import Slimmable
    from us3l.width import AnyWidth


@dataclass(frozen=True)
class Cost:
    """What a network costs per image: see `cost`. Records hold it as it is."""

    params: int
    """Parameters."""
    macs: int
    """Multiply-accumulates of convolutions, linear layers and attention for one image."""
    macs_with_norms: int = 0
    """The same and those of norms (two for each number) and average pooling (one), as the paper counts. 0 in records of
    earlier versions, which did not keep it."""
    bytes: int = 0
    """Weights and buffers as stored. 0 in records of earlier versions, which did not keep it."""


@overload
def cost(network: Slimmable, width: AnyWidth = 1.0, /, *, size: int | None = None) -> Cost: ...
@overload
def cost(network: nn.Module, shape: tuple[int, ...] = (3, 224, 224), /) -> Cost: ...
def cost(network: Any, which: Any = None, /, *, size: int | None = None) -> Cost:
    """Count the parameters, multiply-accumulates and bytes of a network.

    Nothing is computed: the network runs on tensors that have shapes only.

    Args:
        network: A slimmable network, or any plain one.
        which: Of a slimmable network, the width (default: 1). Of a plain one, the shape of an image: channels, height,
            width (default: 3 x 224 x 224).
        size: Side of the images, for a slimmable network (default: what its family is made for).

    Returns:
        Its `Cost` per image. That of a slimmable network's width is that of the finished network: with the statistics
        of its batch norms, whether it is calibrated or not.

    >>> from torch import nn
    >>> cost(nn.Conv2d(3, 8, 3, bias=False), (3, 10, 10))
    Cost(params=216, macs=13824, macs_with_norms=13824, bytes=864)
    """
    from us3l.slimmable import Slimmable

    if not isinstance(network, Slimmable):
        return plain_cost(network, (3, 224, 224) if which is None else which)
    side = size or network.family.image_size or network.family.usual_size
    return plain_cost(network.skeleton(1.0 if which is None else which), (3, side, side))


def plain_cost(network: nn.Module, shape: tuple[int, ...]) -> Cost:
    """Count a plain network as it is: see `cost`."""
    import torch
    from torch.func import functional_call
    from torch.utils.flop_counter import FlopCounterMode

    from us3l.tensors import HollowNorms

    counted = norm_counters()
    tensors = dict(network.named_parameters()) | dict(network.named_buffers())
    hollow = {name: torch.empty_like(tensor, device="meta") for name, tensor in tensors.items()}
    with (
        torch.no_grad(),
        FlopCounterMode(display=False, custom_mapping=counted) as counter,
        HollowNorms() as batch_norms,
    ):
        functional_call(network, hollow, (torch.empty(2, *shape, device="meta"),))  # two: batch norm may need them
    norms = norm_flops((batch_norms.numbers,))
    total = counter.get_total_flops() + norms
    norms += sum(flops for operation, flops in counter.get_flop_counts()["Global"].items() if operation in counted)
    return Cost(
        params=sum(p.numel() for p in network.parameters()),
        macs=(total - norms) // 2 // 2,  # two flops each, and two images
        macs_with_norms=total // 2 // 2,
        bytes=sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()),
    )


def norm_flops(shape: tuple[int, ...], *_: Any, **__: Any) -> int:
    return 2 * 2 * prod(shape)  # a flop counter's multiply-accumulate is two


def pool_flops(shape: tuple[int, ...], *_: Any, **__: Any) -> int:
    return 2 * prod(shape)


@cache
def norm_counters() -> dict[Any, Any]:
    """Return what norms and pooling cost, by operation."""
    import torch

    aten = torch.ops.aten
    return {
        aten.native_batch_norm: norm_flops,
        aten._native_batch_norm_legit: norm_flops,
        aten._native_batch_norm_legit_no_training: norm_flops,
        aten.native_layer_norm: norm_flops,
        aten.native_group_norm: norm_flops,
        aten._adaptive_avg_pool2d: pool_flops,
        aten.mean: pool_flops,  # what adaptive pooling to one pixel becomes
    }


def feature_count(skeleton: nn.Module, size: int) -> int:
    """Return how many features a network gives for an image; nothing is computed.

    Args:
        skeleton: What `net.skeleton` gives.
        size: Side of the image, in pixels.
    """
    import torch

    from us3l.tensors import HollowNorms

    with HollowNorms():
        return skeleton(torch.zeros(2, 3, size, size, device="meta")).shape[-1]


def pareto(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return the places of the (cost, value) points that no other beats, which is cheaper or better, cheapest first.

    >>> pareto([(1, 10), (2, 9), (3, 12)])
    [0, 2]
    """
    front, best = [], -inf
    for index in sorted(range(len(points)), key=lambda index: (points[index][0], -points[index][1])):
        if points[index][1] > best:
            front.append(index)
            best = points[index][1]
    return front
