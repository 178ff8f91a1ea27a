"""A look at images and at the computer, for `us3l.training.automatic`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from us3l.data.images import ImageSet
from us3l.data.sources import Data, peek
from us3l.system.devices import available_memory, choose_device, precision_here, usable_cores
from us3l.system.progress import SILENT, Progress
from us3l.training.automatic import Situation


def look(data: Data, given: Mapping[str, Any] | None = None, progress: Progress = SILENT) -> Situation:
    """Facts about images to train on, and about this computer.

    Args:
        data: See `us3l.data.sources.open_images`; only the headers of a few hundred images are read.
        given: Settings by their bare names: `images` and `accelerator` matter here.
        progress: Told how far it is, where looking takes long.
    """
    given = given or {}
    files = peek(data, given.get("images"), progress)
    shapes = [(files.images.shape[2], files.images.shape[3])] if isinstance(files, ImageSet) else files.shapes()
    device = choose_device(given.get("accelerator", "auto"))
    return Situation(
        images=len(files),
        shapes=tuple(shapes),
        labelled=files.labels is not None,
        cores=usable_cores(),
        memory=available_memory(),
        device=device.type,  # type: ignore[arg-type]
        precision=precision_here(device.type),  # type: ignore[arg-type]
        **(_gpu() if device.type == "cuda" else {}),
    )


def _gpu() -> dict[str, Any]:
    """About the first GPU: the others are taken to be the same."""
    return {"device_name": torch.cuda.get_device_name(), "device_memory": torch.cuda.mem_get_info()[0]}
