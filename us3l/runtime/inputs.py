"""From images in any form to the input of a network, a batch at a time."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from PIL import Image as Pillow
from torch import Tensor

from us3l.data.decode import Damaged
from us3l.data.image_folder import open_folder
from us3l.data.preprocessing import Preprocessing
from us3l.system.errors import UserError

AnyImage = str | Path | bytes | np.ndarray | Tensor | Pillow.Image
"""An image file, its bytes, uint8 pixels (3 x H x W or H x W x 3), or an image of Pillow's."""
AnyImages = AnyImage | Iterable[AnyImage]
"""Several images: as one array (N x 3 x H x W or N x H x W x 3), one after another, or a folder's name."""
OnError = Literal["raise", "nan"]


@dataclass(frozen=True)
class Prepared:
    """Some of the images, ready for a network."""

    pixels: np.ndarray
    """Of those that could be read: N x 3 x size x size, float32."""
    readable: np.ndarray
    """One bool for each image of the batch."""


def image_files(folder: str | Path) -> list[Path]:
    """The images below a folder, in the order in which `Runtime` takes them: by their names.

    Args:
        folder: Searched with all its sub-folders.

    Returns:
        Paths, one per row of what `Runtime.embed(folder)` gives.
    """
    catalogue = open_folder(Path(folder))
    if catalogue is None:
        raise UserError(f"{folder} holds no images")
    return [Path(folder) / catalogue.name(index) for index in range(len(catalogue.labels))]


def listed(images: AnyImages) -> np.ndarray | Tensor | list[AnyImage]:
    """Images whose number is known, still to be read."""
    if isinstance(images, str | Path):
        return list(image_files(images)) if Path(images).is_dir() else [images]
    if isinstance(images, bytes | Pillow.Image):
        return [images]
    if isinstance(images, np.ndarray | Tensor):
        if images.ndim != 4 or 3 not in (images.shape[1], images.shape[3]) or not len(images):
            raise UserError(f"images must be N x 3 x H x W or N x H x W x 3, not {shape_of(images)}")
        return images
    found = list(images)
    if not found:
        raise UserError("there are no images")
    return found


def batches(
    images: np.ndarray | Tensor | list[AnyImage], preprocessing: Preprocessing, size: int, on_error: OnError = "raise"
) -> Iterator[Prepared]:
    """Images as evaluation showed them to the networks, at most `size` at a time; no more are held.

    With `on_error="nan"` those that cannot be read are left out, and a warning tells of them at the end.
    """
    unreadable: list[str] = []
    for start in range(0, len(images), size):
        some = images[start : start + size]
        if isinstance(some, np.ndarray | Tensor):
            yield Prepared(
                preprocessing.apply(pixels_of(some, "images")).contiguous().numpy(), np.ones(len(some), bool)
            )
            continue
        pixels: list[Tensor | None] = []
        for number, image in enumerate(some, start):
            try:
                pixels.append(read(image, preprocessing, f"image {number}"))
            except UserError as error:
                if on_error == "raise":
                    raise
                unreadable.append(str(error))
                pixels.append(None)
        good = [tensor for tensor in pixels if tensor is not None]
        yield Prepared(together(good, preprocessing), np.array([tensor is not None for tensor in pixels]))
    if unreadable:
        text = f"{len(unreadable)} of {len(images)} images could not be used; the first: {unreadable[0]}"
        warnings.warn(text, stacklevel=5)


def read(image: AnyImage, preprocessing: Preprocessing, place: str) -> Tensor:
    """One image's pixels, 3 x H x W, uint8."""
    if isinstance(image, np.ndarray | Tensor):
        return pixels_of(image, place)
    if not isinstance(image, str | Path | bytes | Pillow.Image):
        raise UserError(f"{place} must be a file, its bytes, an array or a Pillow image, not {type(image).__name__}")
    try:
        decoded = preprocessing.decode(Path(image) if isinstance(image, str) else image)
    except Damaged as error:
        raise UserError(f"cannot read {image if isinstance(image, str | Path) else place}: {error}") from None
    return torch.from_numpy(decoded.copy()).permute(2, 0, 1)


def pixels_of(values: np.ndarray | Tensor, place: str) -> Tensor:
    """One image as 3 x H x W or several as N x 3 x H x W, of values of either order."""
    pixels = torch.as_tensor(values).cpu()
    if pixels.ndim not in (3, 4) or 3 not in (pixels.shape[-3], pixels.shape[-1]):
        raise UserError(f"{place} must be 3 x H x W or H x W x 3, not {shape_of(pixels)}")
    if pixels.dtype != torch.uint8:
        raise UserError(f"{place} must be uint8, from 0 to 255, not {str(pixels.dtype).removeprefix('torch.')}")
    return pixels if pixels.shape[-3] == 3 else pixels.movedim(-1, -3)


def together(pixels: list[Tensor], preprocessing: Preprocessing) -> np.ndarray:
    """Images of any size, as the input of a network."""
    if not pixels:
        return np.zeros((0, 3, preprocessing.size, preprocessing.size), np.float32)
    alike = len({tensor.shape for tensor in pixels}) == 1
    parts = [torch.stack(pixels)] if alike else [tensor[None] for tensor in pixels]
    return torch.cat([preprocessing.apply(part) for part in parts]).contiguous().numpy()


def shape_of(pixels: np.ndarray | Tensor) -> str:
    return " x ".join(map(str, pixels.shape))
