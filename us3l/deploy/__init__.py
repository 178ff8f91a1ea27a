"""From a run to a device: costs and latencies of widths, the best one within budgets, proved files, and their use.

What is meant to be called from elsewhere is here by its name, and is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from us3l.deploy.adaptive import Adaptive as Adaptive
    from us3l.deploy.adaptive import Controller as Controller
    from us3l.deploy.embedding import Embedded as Embedded
    from us3l.deploy.embedding import embed_images as embed_images
    from us3l.deploy.exporting import Exported as Exported
    from us3l.deploy.exporting import export_run as export_run
    from us3l.deploy.finding import Finding as Finding
    from us3l.deploy.finding import find_images as find_images
    from us3l.deploy.images import image_files as image_files
    from us3l.deploy.picking import Picked as Picked
    from us3l.deploy.picking import pick_width as pick_width
    from us3l.deploy.predicting import Predicted as Predicted
    from us3l.deploy.predicting import predict_images as predict_images
    from us3l.deploy.profiling import Profiled as Profiled
    from us3l.deploy.profiling import profile_run as profile_run
    from us3l.deploy.publishing import Published as Published
    from us3l.deploy.publishing import publish_model as publish_model
    from us3l.deploy.runtime import Predictions as Predictions
    from us3l.deploy.runtime import Runtime as Runtime

_HOMES = {
    "profile_run": "profiling",
    "Profiled": "profiling",
    "pick_width": "picking",
    "Picked": "picking",
    "export_run": "exporting",
    "Exported": "exporting",
    "embed_images": "embedding",
    "Embedded": "embedding",
    "predict_images": "predicting",
    "Predicted": "predicting",
    "find_images": "finding",
    "Finding": "finding",
    "publish_model": "publishing",
    "Published": "publishing",
    "Runtime": "runtime",
    "Predictions": "runtime",
    "Adaptive": "adaptive",
    "Controller": "adaptive",
    "image_files": "images",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
