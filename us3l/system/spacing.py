"""Some of many: evenly spaced places in a sequence."""

from __future__ import annotations


def evenly_spaced(count: int, most: int) -> list[int]:
    """Return at most `most` of the places 0, 1, ... `count` - 1, evenly spaced, with both ends; of one, the first.

    >>> evenly_spaced(10, 4), evenly_spaced(3, 4), evenly_spaced(10, 1), evenly_spaced(0, 4)
    ([0, 3, 6, 9], [0, 1, 2], [0], [])
    """
    wanted = min(most, count)
    return [round(place * (count - 1) / max(1, wanted - 1)) for place in range(wanted)]
