"""Which images of a source are for training and which for testing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import numpy as np

from us3l.system.errors import UserError

Split = Literal["train", "test", "all", "pretrain", "every", "learn", "validation"]
TRAIN = re.compile(r"(train|training)\d*", re.IGNORECASE)
TEST = re.compile(r"(test|val|valid|validation)\d*", re.IGNORECASE)
TEST_SHARE = 0.2
VALIDATION_SHARE = 0.1
SEED = 0  # of splits and subsets: part of what a data set is, never of an experiment


def split_names(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """The names that mean training, and those of the first kind present that means testing."""
    train = [name for name in names if TRAIN.fullmatch(name)]
    kinds = {name: match[1].lower() for name in names if (match := TEST.fullmatch(name))}
    kind = min(kinds.values(), default="", key=["test", "val", "valid", "validation"].index)
    return train, [name for name in names if kinds.get(name) == kind]


def is_split_name(name: str) -> bool:
    """Whether a folder of this name holds a part of a data set, and says nothing of which."""
    return bool(TRAIN.fullmatch(name) or TEST.fullmatch(name))


def choose(labels: np.ndarray, in_test: np.ndarray | None, split: Split, limit: int | None) -> np.ndarray:
    """Rising indices of the images of a split, no more than `limit`."""
    if limit is not None and limit < 1:
        raise UserError(f"limit must be at least 1, not {limit}")
    part = split
    if part in ("pretrain", "learn", "validation"):
        split = "all" if (labels < 0).any() else "train"
    generator = np.random.default_rng(SEED)
    if split == "every":
        in_test = np.zeros(len(labels), bool)
    if in_test is None:
        in_test = _held_out(labels, TEST_SHARE, generator) & (split != "all")
    indices = np.flatnonzero(in_test if split == "test" else ~in_test)
    if part in ("learn", "validation"):  # a generator of its own: the choices of other splits stay as they were
        validation = _held_out(labels[indices], VALIDATION_SHARE, np.random.default_rng([SEED, 1]))
        indices = indices[validation if part == "validation" else ~validation]
    if limit is None or limit >= len(indices):
        return indices
    ranks, _ = _ranks(labels[indices], generator)
    by_rank = np.lexsort([generator.random(len(indices)), ranks])  # one of each class, then another of each
    return np.sort(indices[by_rank[:limit]])


def _held_out(labels: np.ndarray, share: float, generator: np.random.Generator) -> np.ndarray:
    """Mark a random share of each class; at least one image of a class that has two."""
    ranks, counts = _ranks(labels, generator)
    return ranks < np.maximum(np.round(share * counts), counts > 1)


def _ranks(labels: np.ndarray, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """For each image its place in a random order of its class, and the size of its class."""
    _, group, counts = np.unique(labels, return_inverse=True, return_counts=True)
    shuffled = generator.permutation(len(labels))
    by_group = shuffled[np.argsort(group[shuffled], kind="stable")]
    ranks = np.empty(len(labels), int)
    ranks[by_group] = np.arange(len(labels)) - (np.cumsum(counts) - counts)[group[by_group]]
    return ranks, counts[group]
