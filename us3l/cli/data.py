"""Loading models for the commands."""

from __future__ import annotations

from pathlib import Path

from us3l.slimmable import Slimmable


def load_model(path: Path) -> Slimmable:
    """The network in a run's folder, or in a model's own."""
    from us3l.run import Run

    return Run(path).network
