"""Widths: how channel counts follow them, and which widths give distinct networks."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Hashable, Iterable
from math import ceil, inf

Width = float | tuple[float, ...]
"""One number for the whole network, or one for each of its stages."""

RESOLUTION = 1e-5
PATIENCE = 5  # seconds without a word


def encode(width: Width) -> str:
    """A width as text, to the last digit.

    >>> encode(0.5), encode((0.25, 1 / 3))
    ('0.5', '0.25,0.3333333333333333')
    """
    return ",".join(map(repr, (float(width),) if isinstance(width, int | float) else map(float, width)))


def decode(text: str, exact: Iterable[float] = ()) -> Width:
    """The width in a text, or a `ValueError`. Of those `exact` ones, the first eight digits will do.

    >>> decode("0.25,0.33333333", exact=[1 / 3])
    (0.25, 0.3333333333333333)
    """
    rounded = {f"{number:.8g}": number for number in exact}  # as earlier versions wrote them
    numbers = tuple(rounded[part] if part in rounded else float(part) for part in text.split(","))
    return numbers[0] if len(numbers) == 1 else numbers


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
