"""The libraries that write and run exported files, without the usage data that they would send.

ONNX Runtime, OpenVINO and NNCF report their use to their makers, and keep an id of the machine or the user for it.
Every import of them by us3l goes through `need`, which switches that off first, by the ways that the libraries offer:

- ONNX Runtime does not start its reporter when `ORT_DISABLE_TELEMETRY` is "1" before it is imported;
- OpenVINO and NNCF do without when the package `openvino_telemetry` is not there.

Who wants to report sets `ORT_DISABLE_TELEMETRY` to "0", or imports `openvino_telemetry` before.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

from us3l.system.errors import UserError

EXTRAS = {"executorch": "executorch", "faiss": "search"} | dict.fromkeys(
    ("h11", "prometheus_client", "python_multipart", "starlette", "uvicorn"), "serve"
)
"""The extra of us3l that brings a package, where it is not "deploy"."""


def silence() -> None:
    """Let libraries that are imported from now on report nothing."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # imports of it fail from now on


def need(package: str) -> Any:
    """Import a package that reports nothing.

    Args:
        package: its name, or that of a module in it.

    Returns:
        The module; it is a `UserError` that says how to get it if it is missing.
    """
    silence()
    try:
        return import_module(package)
    except ImportError:
        name = package.partition(".")[0]
        extra = EXTRAS.get(name, "deploy")
        raise UserError(f"the package {name} is missing: pip install 'us3l[{extra}]'") from None
