"""Widths: one for all, or one for each stage; how channel counts follow them, and which give distinct networks."""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import total_ordering
from math import ceil, inf
from operator import index
from statistics import fmean
from typing import Any

from us3l.system.errors import UserError

RESOLUTION = 1e-5
PATIENCE = 5  # seconds without a word
STAGE = re.compile(r"(?P<width>[0-9][0-9.]*(e-?[0-9]+)?)(d(?P<depth>[0-9]{1,4}))?")
BETWEEN = re.compile(r"(?<!e)-")  # stages; 1e-05 is one number


@total_ordering
class Subnet:
    """A sub-network whose stages differ: a width for each, and how many of its blocks each keeps.

    It goes wherever a width goes. Its name says it all: in file names, in tables, on the command line, and in Python,
    where a text does as well. Blocks are left out from the end of a stage.

    Args:
        widths: One for each stage, or one for all of them if there are `depths`.
        depths: Blocks of each stage, at least 1 (default: all).

    >>> Subnet((0.75, 0.75, 0.5, 0.625)), Subnet((0.75, 0.5), depths=(2, 1))
    (Subnet('0.75-0.75-0.5-0.625'), Subnet('0.75d2-0.5d1'))
    >>> Subnet.parse("0.75d2-0.5d1").depths
    (2, 1)
    """

    __slots__ = ("depths", "widths")
    widths: tuple[float, ...]
    depths: tuple[int, ...] | None

    def __init__(self, widths: Iterable[float] | float, depths: Iterable[int] | None = None) -> None:
        blocks = None if depths is None else tuple(map(index, depths))
        if isinstance(widths, int | float):
            widths = (widths,) * len(blocks or (1,))
        each = tuple(map(float, widths))
        if not each or (blocks is not None and len(blocks) != len(each)):
            raise ValueError(f"{len(each)} widths do not go with {len(blocks or ())} depths: give one for each stage")
        object.__setattr__(self, "widths", each)
        object.__setattr__(self, "depths", blocks)

    @classmethod
    def parse(cls, name: str) -> Subnet:
        """The sub-network of a name, or a `ValueError`."""
        stages = [STAGE.fullmatch(part) for part in BETWEEN.split(name)]
        found = [stage for stage in stages if stage]
        deep = [stage["depth"] for stage in found if stage["depth"]]
        if len(found) < len(stages) or len(deep) not in (0, len(found)):
            raise ValueError(f"{name!r:.80} is not a sub-network's width: it looks like 0.75-0.5 or 0.75d2-0.5d1")
        return cls([float(stage["width"]) for stage in found], map(int, deep) if deep else None)

    @property
    def name(self) -> str:
        """Its widths to the last digit, and its depths."""
        depths = [""] * len(self.widths) if self.depths is None else [f"d{depth}" for depth in self.depths]
        return "-".join(
            f"{width!r}".removesuffix(".0") + depth for width, depth in zip(self.widths, depths, strict=True)
        )

    @property
    def mean(self) -> float:
        """Of its widths."""
        return fmean(self.widths)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Subnet is frozen: {name} cannot be set")

    def __reduce__(self) -> tuple[Any, ...]:
        return Subnet, (self.widths, self.depths)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"Subnet({self.name!r})"

    def __format__(self, spec: str) -> str:
        """Its name, also where a number would be formatted as `:g`."""
        return self.name if spec.endswith("g") else format(self.name, spec)

    def __hash__(self) -> int:
        return hash((self.widths, self.depths))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Subnet) and (self.widths, self.depths) == (other.widths, other.depths)

    def __lt__(self, other: object) -> bool:
        """By the mean width: so tables list it among plain widths."""
        if not isinstance(other, int | float | Subnet):
            return NotImplemented
        return _order(self) < _order(other)


Width = float | Subnet
"""One number for the whole network, or a sub-network whose stages differ."""
AnyWidth = Width | Sequence[float] | str
"""What may be given for it: also one number for each stage, or its name."""


def _order(width: Width) -> tuple[Any, ...]:
    return (width.mean, width.widths, width.depths or ()) if isinstance(width, Subnet) else (width, (), ())


def encode(width: Width) -> str:
    """A width as text, to the last digit.

    >>> encode(0.5), encode(Subnet((0.25, 1 / 3)))
    ('0.5', '0.25-0.3333333333333333')
    """
    return width.name if isinstance(width, Subnet) else repr(float(width))


def decode(text: str, exact: Iterable[float] = ()) -> Width:
    """The width in a text, or a `ValueError`. Of those `exact` ones, the first eight digits will do.

    >>> decode("0.33333333", exact=[1 / 3]), decode("0.25-0.5"), decode("0.25,0.5")
    (0.3333333333333333, Subnet('0.25-0.5'), Subnet('0.25-0.5'))
    """
    rounded = {f"{number:.8g}": number for number in exact}  # as earlier versions wrote them
    parts = [rounded.get(part, part) for part in text.split(",")]
    if len(parts) > 1:  # as earlier versions wrote one for each stage
        return Subnet(map(float, parts))
    try:
        return float(parts[0])
    except ValueError:
        return Subnet.parse(text)


def given(width: AnyWidth) -> Width:
    """A width in whichever way it was given; what cannot be one is a `UserError`."""
    try:
        if isinstance(width, str):
            return decode(width)
        if isinstance(width, Subnet):
            return width
        return Subnet(width) if isinstance(width, Sequence) else float(width)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise UserError(
            f"{width!r:.80} is not a width: give a number, or one for each stage, such as 0.75-0.5"
        ) from None


def mean_width(width: Width) -> float:
    """One number for any width, to sort or draw it by.

    >>> mean_width(0.5), mean_width(Subnet((0.5, 1.0)))
    (0.5, 0.75)
    """
    return width.mean if isinstance(width, Subnet) else width


def stage_widths(width: Width) -> tuple[float, ...]:
    """All numbers of a width: one, or one for each stage."""
    return width.widths if isinstance(width, Subnet) else (width,)


def for_family(width: Width) -> float | tuple[float, ...] | Subnet:
    """As families take it: one number, or one for each stage; a `Subnet` only where blocks are left out."""
    return width.widths if isinstance(width, Subnet) and width.depths is None else width


def as_plain(width: Width) -> float | str:
    """What files say for a width: its number, or its name.

    >>> as_plain(0.5), as_plain(Subnet((0.75, 0.5)))
    (0.5, '0.75-0.5')
    """
    return width.name if isinstance(width, Subnet) else width


def write_width(value: Any) -> str:
    """A sub-network in a file, by its name: what `json.dumps` asks for as its `default`."""
    if not isinstance(value, Subnet):
        raise TypeError(f"{type(value).__name__} is not a plain value")
    return value.name


def read_width(value: Any) -> Width:
    """A width in a file: a number, or the name of a sub-network; anything else is a `ValueError`.

    >>> read_width(0.5), read_width("0.75-0.5")
    (0.5, Subnet('0.75-0.5'))
    """
    width = Subnet.parse(value) if isinstance(value, str) else value
    plain = isinstance(width, int | float) and not isinstance(width, bool)
    mixed = isinstance(width, Subnet) and (len(width.widths) > 1 or width.depths is not None)
    if not (plain or mixed) or not all(0 < number <= 1 for number in stage_widths(width)):
        raise ValueError(f"width cannot be {value!r:.60}")
    return width


def round_channels(channels: float, divisor: int = 8) -> int:
    """The nearest multiple of `divisor`, never losing more than 10 % of the channels.

    >>> round_channels(0.37 * 64), round_channels(0.25 * 64), round_channels(9)
    (24, 16, 16)
    """
    rounded = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * channels else rounded


def distinct_widths(
    signature: Callable[[float], Hashable], low: float, high: float, resolution: float = RESOLUTION
) -> list[float]:
    """One width for each distinct network on [low, high], ascending: the ends themselves, else the roundest number.

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


def patiently(signature: Callable[[float], Hashable]) -> Callable[[float], Hashable]:
    """The same function, which warns when it has been called for a long time."""
    start = time.monotonic()

    def patient(width: float) -> Hashable:
        nonlocal start
        if time.monotonic() - start > PATIENCE:
            start = inf
            warnings.warn(
                "finding the distinct widths of this family takes long, because each width that is tried is built: "
                "give the family a `signature(width)`, a cheap summary of its shapes",
                stacklevel=2,
            )
        return signature(width)

    return patient


def roundest(first: float, last: float) -> float:
    """The number in [first, last] that a person would name: a quarter, a tenth, a twentieth, a hundredth and so on.

    >>> roundest(0.3672, 0.3828), roundest(0.49, 0.51), roundest(0.72, 0.76)
    (0.37, 0.5, 0.75)
    """
    for parts in (4, 10, 20, 100, 1_000, 10_000, 100_000, 1_000_000):
        candidate = ceil(first * parts) / parts
        if candidate <= last:
            return candidate
    return first
