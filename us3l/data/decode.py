"""From an image file's bytes, of any kind that Pillow opens, to RGB pixels."""

from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

Encoded = Path | bytes | np.ndarray | None
"""An image file, its bytes, pixels that need no decoding (H x W x 3), or None where there should have been some."""


class Damaged(Exception):
    """The image cannot be used; the message says why."""


def decode(encoded: Encoded, size: int | None) -> np.ndarray:
    """Upright RGB pixels, H x W x 3 uint8; with a `size`, the centre square of the image resized to that side.

    Transparent images are laid on white, 16-bit ones scaled to 8 bits; of an animation the first frame is taken.
    """
    if encoded is None:
        raise Damaged("no image bytes")
    if isinstance(encoded, np.ndarray):
        return encoded if size is None else np.asarray(_square(Image.fromarray(encoded), size))
    try:
        with Image.open(BytesIO(encoded) if isinstance(encoded, bytes) else encoded) as image:
            if size:
                image.draft(None, (2 * size, 2 * size))  # large JPEGs are decoded at a fraction of their size
            pixels = _rgb(ImageOps.exif_transpose(image))
        return np.asarray(_square(pixels, size) if size else pixels)
    except UnidentifiedImageError:
        raise Damaged("not an image") from None
    except Exception as error:  # on damaged files, Pillow's readers raise nearly anything
        message = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise Damaged(message.splitlines()[0] if message else type(error).__name__) from error


def _square(image: Image.Image, size: int) -> Image.Image:
    return ImageOps.fit(image, (size, size), method=Image.Resampling.BILINEAR)  # Pillow's filters are antialiased


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode == "F":
        raise Damaged("floating-point pixels, whose range is unknown")
    if image.mode.startswith("I"):  # Pillow would clip 16-bit values at 255
        return Image.fromarray((np.asarray(image).clip(0, 65535) / 257).round().astype(np.uint8)).convert("RGB")
    if "A" in image.getbands() or "transparency" in image.info:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")
