"""A network in memory, where commands expect a run."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from us3l.run.folder import Run
from us3l.run.identity import Weights
from us3l.system.errors import UserError

if TYPE_CHECKING:
    from us3l.slimmable import Slimmable

NOWHERE = Path(os.devnull) / "network"
"""A folder in which nothing exists and nothing can be written."""


class UnsavedRun(Run):
    """A network in memory that stands in for a run: there are no results of it, and none are kept.

    Args:
        net: The network.
    """

    def __init__(self, net: Slimmable) -> None:
        super().__init__(NOWHERE, net.family)
        vars(self)["network"] = net  # a cached property

    @property
    def saved(self) -> bool:
        return False

    @property
    def weights(self) -> Weights:
        from safetensors.torch import save

        from us3l.tensors import digest

        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self.network.weights().items()}
        statistics = {f"{kept.width:g}": digest(kept.statistics)[:16] for kept in self.network.calibrations}
        return Weights(hashlib.sha256(save(tensors)).hexdigest(), statistics)  # the former as of a saved file


def run_of(model: Run | Slimmable | str | Path) -> Run:
    """Return a run from whatever stands for one: itself, its path, or a network in memory."""
    if isinstance(model, Run):
        return model
    if isinstance(model, str | Path):
        return Run(model)
    return UnsavedRun(model)


@contextmanager
def in_files(run: Run) -> Iterator[Run]:
    """Give a run whose model is in files, to send them: a network in memory is saved for the while."""
    if run.saved:
        yield run
        return
    with TemporaryDirectory() as folder:
        place = Run(Path(folder) / "network", run.family)
        run.network.save(place.folder)
        yield place


def check_out(run: Run, out: object | None) -> None:
    """Raise a `UserError` if results would have no place: a network in memory has no folder for them."""
    if not run.saved and out is None:
        raise UserError("say where the files of a network should go: `out='FOLDER'`")
