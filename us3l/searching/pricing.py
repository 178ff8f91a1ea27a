"""What sub-networks cost, relative to budgets: counted exactly, latencies added up from a table of measured blocks."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import cached_property

import torch
from torch import Tensor, nn

from us3l.costs import cost
from us3l.deploy.latency import take_turns
from us3l.deploy.peak_memory import peak_memory
from us3l.slimmable import Slimmable
from us3l.width import FULL, Width

TURNS = 3


class BlockTimes:
    """Latencies of networks as sums over their blocks, each of which is timed once, when it is first met.

    Blocks one by one are quicker than in their network, so the sums are too low. All are scaled alike, so that the full
    network's is what it takes as a whole.

    Args:
        net: Whose family tells the blocks: see `Family.chain`.
        size: Side of the images.
        known: Milliseconds of blocks that were timed before, by their names; new ones join them.
        keep: Called with the name and the milliseconds of each new one.
    """

    def __init__(
        self,
        net: Slimmable,
        size: int,
        known: dict[str, float] | None = None,
        keep: Callable[[str, float], None] = lambda *_: None,
    ) -> None:
        self.net, self.size, self.keep = net, size, keep
        self.known: dict[str, float] = {} if known is None else known
        self._sums: dict[Width, float] = {}

    def __call__(self, width: Width) -> float:
        """Milliseconds for one image."""
        return self._sum(width) * self._scale

    @cached_property
    @torch.inference_mode()
    def _scale(self) -> float:
        """How much longer the full network takes than its blocks one by one."""
        return self._time(self.net.blank(1.0).eval(), torch.zeros(1, 3, self.size, self.size)) / self._sum(FULL)

    @torch.inference_mode()
    def _sum(self, width: Width) -> float:
        if width not in self._sums:
            x, total = torch.zeros(1, 3, self.size, self.size), 0.0  # in the layout in which profiles time networks
            for block in self.net.family.chain(self.net.blank(width).eval()):
                total += self._time(block, x)
                x = block(x)
            self._sums[width] = total
        return self._sums[width]

    def _time(self, block: nn.Module, x: Tensor) -> float:
        """Milliseconds of a block, measured once: the fastest call, which other programs disturb least."""
        name = named(block, tuple(x.shape))
        if name not in self.known:
            times = take_turns({name: lambda: block(x.clone())}, TURNS)
            self.known[name] = min(times[name])
            self.keep(name, self.known[name])
        return self.known[name]


def named(block: nn.Module, shape: tuple[int, ...]) -> str:
    """What a block costs depends on: its kind, its weights' shapes, its strides, its input's shape."""
    weights = ",".join("x".join(map(str, weight.shape)) for weight in block.parameters())
    strides = ",".join(str(part.stride[0]) for part in block.modules() if isinstance(part, nn.Conv2d))
    return f"{type(block).__name__} {weights} by {strides} on {'x'.join(map(str, shape))}"


class Prices:
    """What sub-networks cost; each is counted once.

    Args:
        net: The network.
        size: Side of the images.
        budgets: Most of each figure, by the names of `us3l.deploy.deployment_settings.BUDGETS`.
        times: Latencies, if there is a budget for them.
    """

    def __init__(
        self, net: Slimmable, size: int, budgets: Mapping[str, float], times: Callable[[Width], float] | None = None
    ) -> None:
        self.net, self.size, self.budgets, self.times = net, size, budgets, times
        self._known: dict[Width, dict[str, float]] = {}
        self._blocks: dict[str, tuple[int, tuple[int, ...]]] = {}
        self._rest: dict[Hashable, int] = {}

    def __call__(self, width: Width) -> dict[str, float]:
        """All figures that are cheap to know, and those that there are budgets for."""
        if width not in self._known:
            network, shape = self.net.skeleton(width).eval(), (3, self.size, self.size)  # counted faster
            weights = [*network.parameters()]
            stored = sum(tensor.numel() * tensor.element_size() for tensor in [*weights, *network.buffers()])
            figures: dict[str, float] = {
                "macs": self._macs(network),
                "params": sum(weight.numel() for weight in weights),
                "size_mb": stored / 1e6,
            }
            if "memory_mb" in self.budgets:
                figures["memory_mb"] = peak_memory(network, shape) / 1e6
            if self.times:
                figures["latency_ms"] = self.times(width)
            self._known[width] = figures
        return self._known[width]

    @torch.no_grad()
    def _macs(self, network: nn.Module) -> int:
        """Multiply-accumulates as `cost` counts them, added up from blocks that are counted once: most are shared."""
        chain, image = self.net.family.chain(network), (3, self.size, self.size)
        if chain == [network]:
            return cost(network, image).macs
        shape: tuple[int, ...] = (2, *image)
        total = 0
        for block in chain:
            name = named(block, shape)
            if name not in self._blocks:
                output = block(torch.empty(shape, device="meta"))
                self._blocks[name] = cost(block, shape[1:]).macs, tuple(output.shape)
            macs, shape = self._blocks[name]
            total += macs
        apart = {id(weight) for block in chain for weight in block.parameters()}
        rest = shape, *(weight.shape for weight in network.parameters() if id(weight) not in apart)
        if rest not in self._rest:  # what follows the last block
            self._rest[rest] = cost(network, image).macs - total
        return total + self._rest[rest]

    def excess(self, width: Width) -> float:
        """The largest share of a budget that it takes: at most 1 keeps them all."""
        figures = self(width)
        return max(figures[name] / budget for name, budget in self.budgets.items())
