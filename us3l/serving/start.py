"""From what is asked for to a service that runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from us3l.hub import local_folder
from us3l.serving.settings import ServiceSettings
from us3l.system.errors import UserError
from us3l.system.files import read_bytes

if TYPE_CHECKING:
    from us3l.collection.shared_space import SpaceName
    from us3l.runtime.backends import Backend
    from us3l.serving.server import Listening

PACKAGES = ("starlette", "uvicorn", "h11", "python_multipart", "prometheus_client")


def listening(
    model: str | Path,
    settings: ServiceSettings | None = None,
    *,
    backend: Backend | Literal["auto"] = "auto",
    threads: int | None = None,
    int8: bool | None = None,
    head: str | None = None,
    space: SpaceName = "own",
    host: str = "127.0.0.1",
    port: int = 8000,
    token_file: Path | None = None,
) -> Listening:
    """A service that listens, and serves as soon as its `run` is called.

    Args:
        model: The folder of a run, of a model or of a bundle.
        settings: What it accepts, and how long it may take.
        backend: What computes: as in `us3l.Runtime`.
        threads: Processors that compute one image together (default: all with ONNX Runtime, else one: as measured).
        int8: Choose between the files of a bundle that has both.
        head: The classifier, if there are several.
        space: "shared" for features that can be compared across widths.
        host: Address to listen on; only this machine can connect to the default.
        port: 0 takes one that is free.
        token_file: A file with the token that clients must send.
    """
    from us3l.system.optional import need

    for package in PACKAGES:
        need(package)
    from us3l.serving.model import ServedModel
    from us3l.serving.server import Listening
    from us3l.serving.service import Service

    settings = settings or ServiceSettings()
    if token_file is not None:
        settings = replace(settings, token=read_bytes(token_file).decode(errors="replace").strip())
    place = local_folder(model)
    if not place.is_dir():
        raise UserError(f"{place} is not a folder: give that of a run, a model or a bundle")
    number = threads or usual_threads(place, backend)
    load: Callable[[], ServedModel] = lambda: ServedModel(place, settings, backend, number, int8, head, space)  # noqa: E731
    return Listening(Service(load, settings), host, port)


def usual_threads(place: Path, backend: str) -> int:
    """Several threads of ONNX Runtime shorten the wait of a lone client, and cost nothing when there are many."""
    from us3l.run.bundles import read_bundle
    from us3l.runtime.runtime import bundle_folder

    folder = bundle_folder(place, backend)
    if folder is None or backend in ("torch", "openvino"):
        return 1
    formats = {entry.format for entry in read_bundle(folder).entries}
    return processors() if backend == "onnx" or "openvino" not in formats else 1


def processors() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
