"""Batch-norm statistics of a width, the weights that they belong to, and their place in a state dict."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from us3l.width import Width

Statistics = dict[str, Tensor]
"""Running means and variances of one network's batch norms, by their names in its state dict."""
PREFIX, WEIGHTS = "statistics.", "weights.sha256"  # in the names of a state dict


class Calibration(NamedTuple):
    """What `us3l.calibrate` found for one width."""

    width: Width
    statistics: Statistics
    weights: str
    """The digest of the weights that the statistics belong to."""


def to_state(calibrations: Iterable[Calibration], prefix: str) -> dict[str, Tensor]:
    """Statistics and the digest of their weights as tensors by name, so that any reader of checkpoints takes them."""
    state: dict[str, Tensor] = {}
    for width, statistics, weights in calibrations:
        place = f"{prefix}{PREFIX}{width}/"
        state |= {place + name: tensor for name, tensor in statistics.items()}
        state[place + WEIGHTS] = torch.tensor(list(bytes.fromhex(weights)), dtype=torch.uint8)
    return state


def take_from_state(state: dict[str, Any], prefix: str, errors: list[str]) -> list[Calibration]:
    """What `to_state` made, removed from a state dict; what cannot be understood is an error more."""
    start = prefix + PREFIX
    widths: dict[str, Statistics] = {}
    for key in [key for key in state if key.startswith(start)]:
        width, _, name = key.removeprefix(start).partition("/")
        widths.setdefault(width, {})[name] = state.pop(key)
    found = []
    for text, statistics in widths.items():
        try:
            weights = bytes(statistics.pop(WEIGHTS).tolist()).hex()
            own = {name: tensor.detach().cpu().clone() for name, tensor in statistics.items()}
            found.append(Calibration(Width(text), own, weights))
        except (KeyError, ValueError) as error:
            errors.append(f"the statistics of width {text} do not fit: {error}")
    return found
