"""What sub-networks cost, relative to budgets: counted exactly, latencies added up from a table of measured blocks."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping

import torch
from torch import nn

from us3l.costs import cost
from us3l.deploy.memory import peak_memory
from us3l.deploy.timing import percentile, take_turns
from us3l.slimmable import Slimmable
from us3l.width import Width

TURNS = 3


class BlockTimes:
    """Latencies of networks as sums over their blocks, each of which is timed once, when it is first met.

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
        self._totals: dict[Width, float] = {}

    def __call__(self, width: Width) -> float:
        """Milliseconds for one image, without what follows the last block."""
        if width not in self._totals:
            self._totals[width] = self._total(width)
        return self._totals[width]

    @torch.inference_mode()
    def _total(self, width: Width) -> float:
        x = torch.zeros(1, 3, self.size, self.size).contiguous(memory_format=torch.channels_last)
        total = 0.0
        for block in self.net.family.chain(self.net.blank(width).eval()):
            name = named(block, tuple(x.shape))
            if name not in self.known:
                times = take_turns({name: lambda block=block, x=x: block(x.clone())}, TURNS)  # type: ignore[misc]
                self.known[name] = percentile(times[name], 50)
                self.keep(name, self.known[name])
            total += self.known[name]
            x = block(x)
        return total


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
        budgets: Most of each figure, by the names of `us3l.deploy.pick.BUDGETS`.
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
            network, shape = self.net.skeleton(width, tracking=True).eval(), (3, self.size, self.size)  # counted faster
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
