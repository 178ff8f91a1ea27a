"""Seeds: every random draw comes from a few numbers, such as a run's seed and the step."""

from __future__ import annotations

import hashlib

import torch


def seed_from(*numbers: int) -> int:
    """Return one seed for each tuple of numbers.

    Args:
        numbers: What the draws depend on, such as (seed, epoch, image).

    Returns:
        A number for `manual_seed`, unrelated to that of any other tuple.
    """
    return int.from_bytes(hashlib.sha256(repr(numbers).encode()).digest()[:7], "big")


def seeded(*numbers: int) -> torch.Generator:
    """Return a generator of its own for each tuple of numbers.

    Args:
        numbers: What the draws depend on, such as (seed, step).

    Returns:
        A generator on the CPU.

    >>> torch.equal(torch.rand(3, generator=seeded(0, 7)), torch.rand(3, generator=seeded(0, 7)))
    True
    """
    return torch.Generator().manual_seed(seed_from(*numbers))
