"""Widths: a value for each network of a family, how channel counts follow it, and which give distinct networks."""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from functools import total_ordering
from math import ceil, inf, isfinite
from operator import index
from statistics import fmean
from typing import Any

from us3l.system.errors import UserError

RESOLUTION = 1e-5
PATIENCE = 5  # seconds before a warning
STAGE = re.compile(r"(?P<width>[0-9][0-9.]*(e-?[0-9]+)?)(d(?P<depth>[0-9]{1,4}))?")
BETWEEN = re.compile(r"(?<!e)-")  # stages; 1e-05 is one number


@total_ordering
class Width:
    """Which network of a family: a number, or a number for each stage, and how many of its blocks each stage keeps.

    A frozen value. A plain one, a single number and nothing else, equals that number and hashes like it, so that a
    dictionary by widths can be asked for 0.5. Any other is known by its name: in file names, in tables, on the command
    line. Blocks are left out from the end of a stage.

    Args:
        width: A number, one for each stage, or a name; another `Width` stays as it is.
        depths: Blocks of each stage, at least 1 (default: all); `width` may then be one number for all stages.

    Raises:
        UserError: It is not a width.

    >>> Width(0.5), Width((0.75, 0.75, 0.5, 0.625)), Width((0.75, 0.5), depths=(2, 1))
    (0.5, Width('0.75-0.75-0.5-0.625'), Width('0.75d2-0.5d1'))
    >>> Width("0.75d2-0.5d1").depths, Width("0.5") == 0.5
    ((2, 1), True)
    """

    __slots__ = ("_order", "depths", "widths")
    widths: tuple[float, ...]
    """One number, or one for each stage."""
    depths: tuple[int, ...] | None
    """The blocks of each stage; None: all."""
    _order: tuple[float, tuple[float, ...], tuple[int, ...]]
    """What widths are sorted by: first the mean of the numbers."""

    def __new__(cls, width: AnyWidth | Iterable[float], depths: Iterable[int] | None = None) -> Width:
        if isinstance(width, Width) and depths is None:
            return width
        try:
            widths, blocks = _parse(width) if isinstance(width, str) else (_numbers(width), None)
            blocks = blocks if depths is None else tuple(map(index, depths))
            if not widths or not all(map(isfinite, widths)):
                raise ValueError("no numbers")
        except (TypeError, ValueError, OverflowError):
            raise UserError(
                f"{width!r:.80} is not a width: give a number, or one for each stage, such as 0.75-0.5 or 0.75d2-0.5d1"
            ) from None
        if blocks is not None and len(widths) == 1:
            widths *= len(blocks)
        if blocks is not None and len(blocks) != len(widths):
            raise UserError(f"{len(widths)} widths do not go with {len(blocks)} depths: give one for each stage")
        made = super().__new__(cls)
        plain = blocks is None and len(widths) == 1
        for name, value in (
            ("widths", widths),
            ("depths", blocks),
            ("_order", (fmean(widths), () if plain else widths, blocks or ())),
        ):
            object.__setattr__(made, name, value)
        return made

    @classmethod
    def from_plain(cls, value: object) -> Width:
        """Return the width that a file holds: a number up to 1, or a name; anything else is a `ValueError`.

        >>> Width.from_plain(0.5), Width.from_plain("0.75-0.5")
        (0.5, Width('0.75-0.5'))
        """
        if isinstance(value, int | float | str) and not isinstance(value, bool):
            width = cls(value)
            if all(0 < number <= 1 for number in width.widths):
                return width
        raise ValueError(f"width cannot be {value!r:.60}")

    def as_plain(self) -> float | str:
        """Return what files hold for it: its number, or its name.

        >>> Width(0.5).as_plain(), Width((0.75, 0.5)).as_plain()
        (0.5, '0.75-0.5')
        """
        return self.widths[0] if self.plain else str(self)

    def for_family(self) -> float | tuple[float, ...] | Width:
        """Return what families take: one number, or one for each stage; itself only where blocks are left out."""
        if self.depths is not None:
            return self
        return self.widths if len(self.widths) > 1 else self.widths[0]

    @property
    def plain(self) -> bool:
        """Whether a single number says it all."""
        return self.depths is None and len(self.widths) == 1

    def __float__(self) -> float:
        """The mean of its numbers, to sort or draw it by."""
        return self._order[0]

    def __str__(self) -> str:
        """To the last digit; a name can be part of a file's."""
        if self.plain:
            return repr(self.widths[0])
        depths = [""] * len(self.widths) if self.depths is None else [f"d{depth}" for depth in self.depths]
        return "-".join(
            f"{width!r}".removesuffix(".0") + depth for width, depth in zip(self.widths, depths, strict=True)
        )

    def __repr__(self) -> str:
        return str(self) if self.plain else f"Width({str(self)!r})"

    def __format__(self, spec: str) -> str:
        """A plain width is formatted as a number, any other as its name, also by `:g`."""
        if self.plain and spec:
            return format(self.widths[0], spec)
        return format(str(self), "" if spec.endswith("g") else spec)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Width is frozen: {name} cannot be set")

    def __reduce__(self) -> tuple[Any, ...]:
        return Width, (self.widths, self.depths)

    def __hash__(self) -> int:
        return hash(self.widths[0]) if self.plain else hash((self.widths, self.depths))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Width):
            return (self.widths, self.depths) == (other.widths, other.depths)
        return self.plain and self.widths[0] == other

    def __lt__(self, other: object) -> bool:
        """By the mean: so tables list it among plain widths."""
        if isinstance(other, Width):
            return self._order < other._order
        return self._order < Width(other)._order if isinstance(other, int | float) else NotImplemented


Subnet = Width
"""A width that is not plain, by the name that says so."""
AnyWidth = Width | float | str | Sequence[float]
"""What may be given for a width: see `Width`."""


def _numbers(width: Any) -> tuple[float, ...]:
    try:
        return (float(width),)
    except TypeError:
        return tuple(map(float, width))


def _parse(name: str) -> tuple[tuple[float, ...], tuple[int, ...] | None]:
    """Return the widths and depths in a name, or a `ValueError`."""
    with suppress(ValueError):
        return (float(name),), None
    stages = [STAGE.fullmatch(part) for part in BETWEEN.split(name)]
    whole = [stage for stage in stages if stage]
    depths = [stage["depth"] for stage in whole if stage["depth"]]
    if len(whole) < len(stages) or len(depths) not in (0, len(whole)):
        raise ValueError(name)
    return tuple(float(stage["width"]) for stage in whole), tuple(map(int, depths)) if depths else None


FULL = Width(1)


def round_channels(channels: float, divisor: int = 8) -> int:
    """Return the nearest multiple of `divisor`, never losing more than 10 % of the channels.

    >>> round_channels(0.37 * 64), round_channels(0.25 * 64), round_channels(9)
    (24, 16, 16)
    """
    rounded = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * channels else rounded


def distinct_widths(
    signature: Callable[[float], Hashable], low: float, high: float, resolution: float = RESOLUTION
) -> list[float]:
    """Return a width per distinct network on [low, high], ascending: the ends themselves, else the roundest number.

    Sub-networks are nested, so channel counts never fall with the width: two widths of equal signature have only that
    network between them, and bisection finds every step. Networks that exist on less than `resolution` may be missed.
    """
    known = {low: signature(low), high: signature(high)}
    starts: list[tuple[float, float]] = []  # (last width of one network, first width of the next)

    def search(left: float, right: float) -> None:
        if known[left] == known[right]:
            return
        if right - left < resolution:
            starts.append((left, right))
            return
        middle = (left + right) / 2
        known[middle] = signature(middle)
        search(left, middle)
        search(middle, right)

    search(low, high)
    firsts = [low, *(first for _, first in starts)]
    lasts = [*(last for last, _ in starts), high]
    return [
        low if first == low else high if last == high else roundest(first, last)
        for first, last in zip(firsts, lasts, strict=True)
    ]


def warn_if_slow(signature: Callable[[float], Hashable]) -> Callable[[float], Hashable]:
    """Return the same function, which warns when it has been called for a long time."""
    start = time.monotonic()

    def watched(width: float) -> Hashable:
        nonlocal start
        if time.monotonic() - start > PATIENCE:
            start = inf
            warnings.warn(
                "finding the distinct widths of this family takes long, because each width that is tried is built: "
                "give the family a `signature(width)`, a cheap summary of its shapes",
                stacklevel=2,
            )
        return signature(width)

    return watched


def roundest(first: float, last: float) -> float:
    """Return the number in [first, last] that a person would name: a quarter, a tenth, a twentieth, a hundredth ...

    >>> roundest(0.3672, 0.3828), roundest(0.49, 0.51), roundest(0.72, 0.76)
    (0.37, 0.5, 0.75)
    """
    for parts in (4, 10, 20, 100, 1_000, 10_000, 100_000, 1_000_000):
        candidate = ceil(first * parts) / parts
        if candidate <= last:
            return candidate
    return first
