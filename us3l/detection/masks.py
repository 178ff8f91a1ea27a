"""Masks in COCO's forms, by pycocotools."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from us3l.system.errors import UserError


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


def run_lengths(text: str) -> list[int]:
    """What COCO's compressed form says; a `ValueError` if it says nothing. pycocotools trusts it blindly.

    >>> run_lengths("04"), run_lengths("52203")
    ([0, 4], [5, 2, 2, 2, 5])
    """
    lengths: list[int] = []
    number = shift = 0
    for letter in text:
        bits = ord(letter) - 48
        if not 0 <= bits < 64 or shift > 35:
            raise ValueError(f"{letter!r} does not belong to run lengths")
        number |= (bits & 31) << shift
        shift += 5
        if not bits & 32:  # the last of this number, of which bit 16 is the sign
            number -= (bits & 16) << (shift - 4)
            lengths.append(number + (lengths[-2] if len(lengths) > 2 else 0))
            number = shift = 0
    if shift:
        raise ValueError("the last run length is cut short")
    return lengths


def _uncompressed(segmentation: Any) -> bool:
    return isinstance(segmentation, list) or isinstance(segmentation["counts"], list)


def encode_mask(mask: np.ndarray) -> dict[str, Any]:
    """A mask of bools, H x W, as run lengths that JSON can hold."""
    encoded = coco_masks().encode(np.asfortranarray(mask, np.uint8))
    return {"size": list(encoded["size"]), "counts": encoded["counts"].decode()}
