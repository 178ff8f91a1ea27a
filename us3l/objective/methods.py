"""Methods by name: changes of an `Objective`, whose defaults are US3L."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from us3l.errors import UserError

PLAIN: dict[str, Any] = {"max_first": False, "gradual": False, "alpha": 0.0}
"""Without US3L's strategies: no dynamic sampling, no group regularisation."""
NO_TEACHER: dict[str, Any] = {"momentum_base": False, "momentum_sub": False}
ALONE: dict[str, Any] = {**PLAIN, "samples": 1, "distill_loss": "own", "head": "none", "momentum_sub": False}
US_NET: dict[str, Any] = {**PLAIN, "samples": 4}

METHODS: dict[str, tuple[dict[str, Any], str]] = {
    "us3l": ({}, "InfoNCE with a momentum teacher, MSE distillation through a head of its own (the paper's, for CNNs)"),
    "us3l-byol": ({"base_loss": "mse"}, "the same on BYOL's base loss (the authors' configuration for ImageNet)"),
    "us-simclr": (
        {**US_NET, **NO_TEACHER, "distill_loss": "infonce", "head": "none"},
        "US-Net with SimCLR: four widths a batch, in-place distillation by InfoNCE",
    ),
    "us-simsiam": (
        {**US_NET, **NO_TEACHER, "base_loss": "mse", "head": "shared"},
        "US-Net with SimSiam: in-place distillation through the shared predictor",
    ),
    "us-byol": (
        {**US_NET, "base_loss": "mse", "head": "shared"},
        "US-Net with BYOL: all widths predict the momentum teacher through the shared predictor",
    ),
    "simclr": ({**ALONE, "momentum_base": False}, "SimCLR, one network alone (any width: --individual)"),
    "simsiam": ({**ALONE, "momentum_base": False, "base_loss": "mse"}, "SimSiam, one network alone"),
    "byol": ({**ALONE, "base_loss": "mse"}, "BYOL, one network alone"),
}


def method(name: str) -> dict[str, Any]:
    """What a method changes in an `Objective`.

    >>> method("byol")["samples"]
    1
    """
    if name not in METHODS:
        close = get_close_matches(name, METHODS, n=2, cutoff=0.4)
        hint = f"did you mean {' or '.join(close)}? All: " if close else "choose from "
        raise UserError(f"unknown method {name!r}: {hint}{', '.join(METHODS)}")
    return METHODS[name][0]
