"""The sub-networks that a search chooses from."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from us3l.slimmable import Slimmable
from us3l.system.errors import UserError
from us3l.width import Width, distinct_widths

Genes = tuple[int, ...]
"""A sub-network as places in the lists of a `Space`: the width of each stage, then its depth."""
LEVELS = 8
RESOLUTION = 1e-3  # widths that differ by less are not told apart
T = TypeVar("T")


@dataclass(frozen=True)
class Space:
    """For each stage the widths and depths that are tried, ascending."""

    widths: tuple[tuple[float, ...], ...]
    depths: tuple[tuple[int, ...], ...]
    """Empty, where no blocks are left out."""

    @classmethod
    def of(cls, net: Slimmable, depth: bool = False, levels: int = LEVELS) -> Space:
        """The sub-networks of a network.

        Args:
            net: The network.
            depth: Whether blocks may be left out.
            levels: Widths of a stage, at most, evenly among its distinct ones.
        """
        stages, blocks = net.family.stages or 1, net.family.blocks or ()
        if net.switchable or net.min_width == 1:
            raise UserError("this network has a fixed list of widths: there is nothing to search")
        if stages == 1 and not (depth and blocks):
            more = ", unless blocks may be left out too (`depth`)" if blocks else ""
            raise UserError(f"{net.family.name} has one width for all of its layers: there is nothing to search{more}")
        if depth and not blocks:
            raise UserError(f"{net.family.name} always has all of its blocks: search without `depth`")

        def of_stage(stage: int) -> tuple[float, ...]:
            def signature(width: float) -> Hashable:
                widths = [1.0] * stages
                widths[stage] = width
                return net.signature(Width(widths, blocks or None))

            return evenly(distinct_widths(signature, net.min_width, 1.0, RESOLUTION), levels)

        depths = tuple(tuple(range(1, most + 1)) for most in blocks) if depth else ()
        return cls(tuple(of_stage(stage) for stage in range(stages)), depths)

    @property
    def choices(self) -> tuple[tuple[float, ...] | tuple[int, ...], ...]:
        """What each gene chooses from."""
        return self.widths + self.depths

    @property
    def full(self) -> Genes:
        return tuple(len(choice) - 1 for choice in self.choices)

    @property
    def smallest(self) -> Genes:
        return (0,) * len(self.choices)

    def subnet(self, genes: Genes) -> Width:
        """The sub-network that genes mean."""
        stages = len(self.widths)
        widths = [choice[gene] for choice, gene in zip(self.widths, genes[:stages], strict=True)]
        depths = [choice[gene] for choice, gene in zip(self.depths, genes[stages:], strict=True)]
        return Width(widths, depths or None)

    def moved(self, genes: Genes, place: int, by: int) -> Genes | None:
        """The same with one gene higher or lower; None at the end of its list."""
        gene = genes[place] + by
        return (*genes[:place], gene, *genes[place + 1 :]) if 0 <= gene < len(self.choices[place]) else None

    def drawn(self, random: Random) -> Genes:
        """Any."""
        return tuple(random.randrange(len(choice)) for choice in self.choices)

    def mutated(self, genes: Genes, random: Random) -> Genes:
        """With one or two genes a little higher or lower."""
        for _ in range(random.choice((1, 2))):
            place, by = random.randrange(len(genes)), random.choice((-2, -1, 1, 2))
            genes = self.moved(genes, place, by) or genes
        return genes

    def crossed(self, one: Genes, other: Genes, random: Random) -> Genes:
        """Each gene from either parent."""
        return tuple(random.choice(pair) for pair in zip(one, other, strict=True))


def evenly(values: Sequence[T], most: int) -> tuple[T, ...]:
    """At most this many of the values, evenly, with both ends.

    >>> evenly([1, 2, 3, 4, 5, 6, 7], 4)
    (1, 3, 5, 7)
    """
    count = min(most, len(values))
    if count < 2:
        return tuple(values[-1:])
    return tuple(values[round(i * (len(values) - 1) / (count - 1))] for i in range(count))
