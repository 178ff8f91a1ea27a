"""Masks in COCO's forms, by pycocotools."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from us3l.errors import UserError


def coco_masks() -> ModuleType:
    try:
        from pycocotools import mask
    except ImportError:
        raise UserError("detection needs pycocotools: pip install 'us3l[detect]'") from None
    return mask


def decode_mask(segmentation: Any, height: int, width: int) -> np.ndarray:
    """Polygons or run lengths as a bool for each pixel, H x W."""
    tools = coco_masks()
    parts = tools.frPyObjects(segmentation, height, width) if _uncompressed(segmentation) else segmentation
    return tools.decode(tools.merge(parts) if isinstance(parts, list) else parts) == 1


def _uncompressed(segmentation: Any) -> bool:
    return isinstance(segmentation, list) or isinstance(segmentation["counts"], list)


def encode_mask(mask: np.ndarray) -> dict[str, Any]:
    """A mask of bools, H x W, as run lengths that JSON can hold."""
    encoded = coco_masks().encode(np.asfortranarray(mask, np.uint8))
    return {"size": list(encoded["size"]), "counts": encoded["counts"].decode()}
