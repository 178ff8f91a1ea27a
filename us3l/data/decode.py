"""From an image file's bytes, of any kind that Pillow opens, to RGB pixels."""

import os
import re
import warnings
from io import BytesIO
from pathlib import Path
from stat import S_ISREG

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

Encoded = Path | bytes | np.ndarray | Image.Image | None
"""An image file, its bytes, pixels that need no decoding, an image that Pillow opened, or None where there should have
been one.

Pixels are H x W x 3, uint8; or H x W, float32: grey ones from 0 to 255.
"""

FORMATS = ("JPEG", "PNG", "BMP", "DIB", "GIF", "WEBP", "TIFF", "PPM")
"""Those that are read. Pillow knows many more, one of which (EPS) has another program interpret the file."""
MOST_PIXELS = 2**26
"""Of one image: 8192 x 8192. Decoding takes up to 16 bytes each."""
LARGEST_FILE = 2**28
"""Bytes of one encoded image."""
MOST_SCANS = 1000
MOST_SCANNED = 2**30
"""Of a progressive JPEG: scans, of which ten are usual; and pixels times scans, a second's work or two."""
MARKER = re.compile(rb"\xff[^\x00\x01\xd0-\xd8\xff]", re.DOTALL)
START_OF_SCAN, END_OF_IMAGE = 0xDA, 0xD9

warnings.filterwarnings("ignore", module=r"PIL\.")  # what counts is whether an image can be decoded


class Damaged(Exception):
    """The image cannot be used; the message says why."""


def decode(encoded: Encoded, size: int | None) -> np.ndarray:
    """Upright RGB pixels, H x W x 3 uint8; with a `size`, the centre square of the image resized to that side.

    Transparent images are laid on white, 16-bit ones scaled to 8 bits; of an animation the first frame is taken.
    """
    if encoded is None:
        raise Damaged("no image bytes")
    if isinstance(encoded, np.ndarray):
        pixels = encoded
        if size is not None and encoded.shape[:2] != (size, size):
            pixels = np.asarray(_square(Image.fromarray(encoded), size))
        return pixels if pixels.ndim == 3 else np.repeat(pixels.round().astype(np.uint8)[..., None], 3, axis=2)
    from us3l.data import sandbox

    if sandbox.wanted() and not isinstance(encoded, Image.Image):
        return sandbox.decode_in_child(encoded, size)
    return decode_here(encoded, size)


def decode_here(encoded: Path | bytes | Image.Image, size: int | None) -> np.ndarray:
    """What `decode` does, in this process."""
    try:
        if isinstance(encoded, Image.Image):
            pixels = rgb(ImageOps.exif_transpose(encoded))
            return np.asarray(_square(pixels, size) if size else pixels)
        if isinstance(encoded, Path):
            _check_file(os.stat(encoded))
        elif len(encoded) > LARGEST_FILE:
            raise Damaged(f"{len(encoded):,} bytes are more than an image may have")
        _check_webp(_beginning(encoded))
        with Image.open(BytesIO(encoded) if isinstance(encoded, bytes) else encoded, formats=FORMATS) as image:
            if image.info.get("progressive"):
                _check_scans(content(encoded), *image.size)
            if size:
                image.draft(None, (2 * size, 2 * size))  # large JPEGs are decoded at a fraction of their size
            _check_pixels(*image.size)
            upright = rgb(ImageOps.exif_transpose(image))
        return np.asarray(_square(upright, size) if size else upright)
    except Damaged:
        raise
    except UnidentifiedImageError:
        raise Damaged("not an image") from None
    except Exception as error:  # on damaged files, Pillow's readers raise nearly anything
        message = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise Damaged(message.splitlines()[0] if message else type(error).__name__) from error


def attempt(encoded: Encoded, size: int | None) -> np.ndarray | Damaged:
    """The pixels of an image, or why there are none."""
    try:
        return decode(encoded, size)
    except Damaged as error:
        return error


def weight(encoded: Encoded) -> int:
    """The bytes of memory that an image takes before it is decoded, about."""
    if isinstance(encoded, Image.Image):
        return 4 * encoded.width * encoded.height
    if isinstance(encoded, np.ndarray):
        return encoded.nbytes
    return len(encoded) if isinstance(encoded, bytes) else 0


def content(encoded: Encoded) -> bytes:
    """The bytes of an image as it is kept; none of one that cannot be read."""
    if isinstance(encoded, np.ndarray | Image.Image):
        return encoded.tobytes()
    if isinstance(encoded, Path):
        try:
            _check_file(os.stat(encoded))
            return encoded.read_bytes()
        except (OSError, Damaged):
            return b""
    return encoded or b""


def _check_file(found: os.stat_result) -> None:
    if not S_ISREG(found.st_mode):  # reading from a pipe or a device might never end
        raise Damaged("not a file")
    if found.st_size > LARGEST_FILE:
        raise Damaged(f"{found.st_size:,} bytes are more than an image may have")


def _square(image: Image.Image, size: int) -> Image.Image:
    return ImageOps.fit(image, (size, size), method=Image.Resampling.BILINEAR)  # Pillow's filters are antialiased


def _check_pixels(width: int, height: int) -> None:
    if width * height > MOST_PIXELS:
        raise Damaged(f"{width}x{height} are more than {MOST_PIXELS:,} pixels")


def _beginning(encoded: Path | bytes) -> bytes:
    if isinstance(encoded, bytes):
        return encoded[:32]
    with open(encoded, "rb") as file:
        return file.read(32)


def _check_webp(start: bytes) -> None:
    """Pillow takes memory for all pixels of a WebP when it opens it, so its size is read before."""
    if start[:4] != b"RIFF" or start[8:12] != b"WEBP" or len(start) < 30:
        return
    kind = start[12:16]
    if kind == b"VP8X":
        _check_pixels(1 + int.from_bytes(start[24:27], "little"), 1 + int.from_bytes(start[27:30], "little"))
    elif kind == b"VP8L":
        bits = int.from_bytes(start[21:25], "little")
        _check_pixels(1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF))
    elif kind == b"VP8 ":
        _check_pixels(*(int.from_bytes(start[at : at + 2], "little") & 0x3FFF for at in (26, 28)))


def _check_scans(jpeg: bytes, width: int, height: int) -> None:
    """A progressive JPEG is decoded in full, and again for each of its scans, whatever the size asked for."""
    _check_pixels(width, height)
    scans, place = 0, 2
    while marker := MARKER.search(jpeg, place):
        place, kind = marker.end(), jpeg[marker.end() - 1]
        if kind == END_OF_IMAGE:
            break
        scans += kind == START_OF_SCAN
        place += int.from_bytes(jpeg[place : place + 2], "big")
        if scans * width * height > MOST_SCANNED or scans > MOST_SCANS:
            raise Damaged(f"a JPEG of {width}x{height} pixels in {scans} scans or more")


def rgb(image: Image.Image) -> Image.Image:
    """An image of any mode as RGB."""
    if image.mode == "F":
        raise Damaged("floating-point pixels, whose range is unknown")
    if image.mode.startswith("I"):  # Pillow would clip 16-bit values at 255
        return Image.fromarray(((np.asarray(image, np.int32).clip(0, 65535) + 128) // 257).astype(np.uint8)).convert(
            "RGB"
        )
    if "A" in image.getbands() or "transparency" in image.info:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")
