"""The space that all widths of a model share: a linear map for each, in space.safetensors of a run's folder.

The file has the format of the classifiers (`us3l.run.probes`), without classes.
"""

from __future__ import annotations

from collections.abc import Mapping

from us3l.run.folder import Run
from us3l.run.probes import Linear, Probes, load_probes, write_probes
from us3l.run.weights import check_weights
from us3l.width import Width


def read_space(run: Run) -> Probes | None:
    """The maps that were fitted to the run's present weights, if any; those of others are a `UserError`."""
    if not run.space.exists():
        return None
    space = load_probes(run.space)
    check_weights(run.space, space.weights, run.weights, "remove it, and embed again")
    return space


def keep_space(run: Run, maps: Mapping[Width, Linear], data: str) -> None:
    """Add the maps of some widths to those that are there.

    Args:
        run: Whose widths they are.
        maps: The weight and bias of each.
        data: What they were fitted on.
    """
    known = read_space(run)
    write_probes(run.space, Probes({**(known.linear if known else {}), **maps}, None, data, run.weights))
