"""From pixels or image files to what a network wants."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from us3l.data.decode import Damaged
from us3l.data.preprocessing import Preprocessing
from us3l.errors import UserError

Images = np.ndarray | Tensor | Sequence[str | Path | bytes]
"""uint8 pixels, N x 3 x H x W or N x H x W x 3; or image files, by their paths or as their bytes."""


def prepare(images: Images, preprocessing: Preprocessing) -> np.ndarray:
    """Images as evaluation showed them to the networks: N x 3 x size x size, float32, normalised."""
    pixels = images if isinstance(images, np.ndarray | Tensor) else read_images(images, preprocessing)
    pixels = torch.as_tensor(pixels)
    if pixels.ndim != 4 or 3 not in (pixels.shape[1], pixels.shape[3]) or not len(pixels):
        raise UserError(f"images must be N x 3 x H x W or N x H x W x 3, not {' x '.join(map(str, pixels.shape))}")
    if pixels.dtype != torch.uint8:
        raise UserError(f"images must be uint8, from 0 to 255, not {str(pixels.dtype).removeprefix('torch.')}")
    if pixels.shape[1] != 3:
        pixels = pixels.permute(0, 3, 1, 2)
    return preprocessing.apply(pixels.cpu()).contiguous().numpy()


def read_images(files: Sequence[str | Path | bytes], preprocessing: Preprocessing) -> np.ndarray:
    found = []
    for number, file in enumerate(files):
        try:
            found.append(preprocessing.decode(file if isinstance(file, bytes) else Path(file)))
        except Damaged as error:
            name = f"image {number}" if isinstance(file, bytes) else file
            raise UserError(f"cannot read {name}: {error}") from None
    return np.stack(found) if found else np.zeros((0, 3, 1, 1), np.uint8)
