"""From pixels or image files to what a network wants, as its metadata say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from us3l.data.batches import whole_side
from us3l.data.decode import Damaged, decode
from us3l.data.views import centre
from us3l.errors import UserError

Images = np.ndarray | Tensor | Sequence[str | Path | bytes]
"""uint8 pixels, N x 3 x H x W or N x H x W x 3; or image files, by their paths or as their bytes."""


def prepare(images: Images, preprocessing: dict[str, Any]) -> np.ndarray:
    """Images as evaluation showed them to the networks: N x 3 x size x size, float32, normalised.

    Pixels are taken whole, of image files the centre square; large ones (see `whole_side`) lose a margin.
    """
    size = preprocessing["size"]
    side = preprocessing.get("resize", whole_side(size))
    pixels = images if isinstance(images, np.ndarray | Tensor) else read_images(images, side)
    pixels = torch.as_tensor(pixels)
    if pixels.ndim != 4 or 3 not in (pixels.shape[1], pixels.shape[3]) or not len(pixels):
        raise UserError(f"images must be N x 3 x H x W or N x H x W x 3, not {' x '.join(map(str, pixels.shape))}")
    if pixels.dtype != torch.uint8:
        raise UserError(f"images must be uint8, from 0 to 255, not {str(pixels.dtype).removeprefix('torch.')}")
    if pixels.shape[1] != 3:
        pixels = pixels.permute(0, 3, 1, 2)
    scaled = pixels.float() / 255
    if scaled.shape[-2:] != (side, side):
        scaled = F.interpolate(scaled, (side, side), mode="bilinear", antialias=True)
    mean, std = (torch.tensor(preprocessing[name]).view(3, 1, 1) for name in ("mean", "std"))
    return ((centre(scaled.cpu(), size) - mean) / std).contiguous().numpy()


def read_images(files: Sequence[str | Path | bytes], side: int) -> np.ndarray:
    found = []
    for number, file in enumerate(files):
        try:
            found.append(decode(file if isinstance(file, bytes) else Path(file), side))
        except Damaged as error:
            name = f"image {number}" if isinstance(file, bytes) else file
            raise UserError(f"cannot read {name}: {error}") from None
    return np.stack(found) if found else np.zeros((0, 3, side, side), np.uint8)
