"""From an image file's bytes, of any kind that Pillow opens, to RGB pixels."""

import os
import re
import struct
import warnings
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from stat import S_ISREG

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError
from PIL.ImageFile import ImageFile
from PIL.TiffImagePlugin import TiffImageFile
from simplejpeg import decode_jpeg


class Damaged(Exception):
    """The image cannot be used; the message says why."""


@dataclass(frozen=True)
class Reduced:
    """An image that was decoded and resized before."""

    pixels: np.ndarray
    """H x W x 3, uint8."""
    height: int
    """Of the image that they were made of."""
    width: int


@dataclass(frozen=True)
class Deep:
    """An image of a set whose pixels are integers of more than 8 bits."""

    encoded: Path | bytes
    white: int
    """The value of white in all images of the set."""


Encoded = Path | bytes | np.ndarray | Image.Image | Reduced | Deep | Damaged | None
"""An image file, its bytes, pixels that need no decoding, an image that Pillow opened, one that was decoded before, one
with a range of its own, why that could not be done, or None where there should have been one.

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
START_OF_FRAME, QUANTISATION, START_OF_SCAN, END_OF_IMAGE = 0xC0, 0xDB, 0xDA, 0xD9
SEGMENT = struct.Struct(">BBH")  # of a JPEG: 255, the kind, the bytes that follow with these two
FRAME = struct.Struct(">BHHB")  # bits per value, height, width, channels
HARMLESS = {0xC4: b"", 0xDD: b"", 0xFE: b"", 0xE0: b"JFIF\0", 0xE2: b"ICC_PROFILE\0"}
"""Segments that tell neither the size of a JPEG nor how it was turned, and how they begin."""
REDUCED_FROM = 4  # times the size that is wanted: from there on JPEGs are decoded at a fraction of theirs
REDUCED = ("JPEG", "MPO")  # formats that can be decoded at a fraction of their size
TURNED_BY = {"exif", "xmp", "XML:com.adobe.xmp", "Raw profile type exif"}  # where Pillow looks for the orientation
SIDEWAYS = (5, 6, 7, 8)  # orientations of a camera that was turned by a quarter
TIFF_WIDTH, TIFF_HEIGHT, TIFF_BITS, TIFF_PHOTOMETRIC, TIFF_SAMPLES = 256, 257, 258, 262, 339  # numbers of tags
WHITE_IS_ZERO, SIGNED = 0, 2  # values of the last two
WHITES = tuple(2**bits - 1 for bits in (8, 10, 12, 14, 16))
"""Of pixels in 16 or 32 bits, by the bits that cameras have."""

warnings.filterwarnings("ignore", module=r"PIL\.")  # what counts is whether an image can be decoded


def decode(encoded: Encoded, size: int | None = None, by: int = 1, most: int | None = None) -> np.ndarray:
    """Upright RGB pixels, H x W x 3 uint8.

    Transparent images are laid on white; of an animation the first frame is taken. Integers of more than 8 bits are
    scaled by the value of white that the file declares, or that was measured on its data set; of an image by itself
    they must reach into the top quarter of 16 bits.

    Args:
        encoded: The image.
        size: Make it the centre square of the image, resized to this side.
        by: Of a JPEG, decode only every second, fourth or eighth pixel of its rows and columns, which is quicker.
        most: Pixels that an encoded image may have before it is resized (default: any that is read at all).

    Raises:
        Damaged: It cannot be used.
    """
    white = None
    if isinstance(encoded, Reduced):
        encoded = encoded.pixels
    elif isinstance(encoded, Deep):
        white, encoded = encoded.white, encoded.encoded
    if isinstance(encoded, Damaged):
        raise encoded
    if encoded is None:
        raise Damaged("no image bytes")
    if isinstance(encoded, np.ndarray):
        pixels = encoded
        if size is not None and encoded.shape[:2] != (size, size):
            pixels = np.asarray(_square(Image.fromarray(encoded), size))
        return pixels if pixels.ndim == 3 else np.repeat(pixels.round().astype(np.uint8)[..., None], 3, axis=2)
    if isinstance(encoded, Image.Image):
        with as_damaged:
            upright = _upright(encoded, white)
            return np.asarray(upright if size is None else _square(upright, size))
    if isinstance(encoded, Path):
        encoded = _read_file(encoded)
    fast = by == 1
    if fast and (shape := plain_shape(encoded)):
        with as_damaged:
            _check_pixels(shape[1], shape[0], MOST_PIXELS if most is None else most)
            whole = size is None or min(shape) < REDUCED_FROM * size
            if whole and (jpeg := _decode_jpeg(encoded)) is not None:
                return jpeg if size is None else _squared(jpeg, size)
        fast = False
    with as_damaged, _open(encoded) as image:
        if most is not None:
            _check_pixels(*image.size, most)
        fast = fast and size is None and image.format == "JPEG" and image.mode in ("RGB", "L")
        if fast and _orientation(image) == 1:
            _check_pixels(*image.size)
            if (jpeg := _decode_jpeg(encoded)) is not None:
                return jpeg
        if size is not None:
            if min(image.size) >= REDUCED_FROM * size:  # else Pillow would find that it cannot
                image.draft(None, (2 * size, 2 * size))
        elif by > 1:
            image.draft(None, (image.width // by, image.height // by))
        _check_pixels(*image.size)
        upright = _upright(image, white)
        return np.asarray(upright if size is None else _square(upright, size))


def measure(encoded: Encoded) -> tuple[int, int]:
    """The height and width of an image that is turned upright, before its pixels are decoded.

    Raises:
        Damaged: It cannot be used.
    """
    if isinstance(encoded, Reduced):
        return encoded.height, encoded.width
    if isinstance(encoded, Deep):
        encoded = encoded.encoded
    if isinstance(encoded, Damaged):
        raise encoded
    if encoded is None:
        raise Damaged("no image bytes")
    if isinstance(encoded, np.ndarray):
        return encoded.shape[0], encoded.shape[1]
    if isinstance(encoded, Image.Image):
        with as_damaged:
            return _upright_size(encoded)
    if shape := plain_shape(encoded):
        return shape
    with as_damaged, _open(encoded) as image:
        if image.format not in REDUCED:  # Pillow may have to decode them to find out how they were turned
            _check_pixels(*image.size)
        return _upright_size(image)


def declared_pixels(encoded: bytes) -> int:
    """Return the number of pixels that the header of an image gives; nothing is decoded, of whatever format.

    Raises:
        Damaged: The header cannot be read.
    """
    if shape := plain_shape(encoded):
        return shape[0] * shape[1]
    with as_damaged, _open(encoded) as image:
        return image.width * image.height


def _upright_size(image: Image.Image) -> tuple[int, int]:
    width, height = image.size
    sideways = _orientation(image) in SIDEWAYS
    if sideways and isinstance(image, TiffImageFile):  # of which Pillow may have swapped the sides already
        sideways = image.size == (image.tag_v2[TIFF_WIDTH], image.tag_v2[TIFF_HEIGHT])
    return (width, height) if sideways else (height, width)


def brightest(encoded: Encoded) -> int | None:
    """The largest value of an image of integers of more than 8 bits that does not declare its range; else None.

    Raises:
        Damaged: It cannot be used.
    """
    if not isinstance(encoded, Path | bytes) or plain_shape(encoded):
        return None
    with as_damaged, _open(_read_file(encoded) if isinstance(encoded, Path) else encoded) as image:
        if not image.mode.startswith("I") or _declared_white(image) is not None:
            return None
        _check_pixels(*image.size)
        return int(np.asarray(image).max())


def fetch(encoded: Encoded) -> Encoded:
    """An image file's bytes, to be read once; anything else as it is.

    Raises:
        Damaged: It cannot be read.
    """
    if isinstance(encoded, Deep) and isinstance(encoded.encoded, Path):
        return Deep(_read_file(encoded.encoded), encoded.white)
    return _read_file(encoded) if isinstance(encoded, Path) else encoded


def _read_file(path: Path) -> bytes:
    with as_damaged:
        _check_file(os.stat(path))
        return path.read_bytes()


def _open(encoded: Path | bytes) -> Image.Image:
    """The image, its header read."""
    if isinstance(encoded, Path):
        _check_file(os.stat(encoded))
    elif len(encoded) > LARGEST_FILE:
        raise Damaged(f"{len(encoded):,} bytes are more than an image may have")
    _check_webp(_beginning(encoded))
    image = Image.open(BytesIO(encoded) if isinstance(encoded, bytes) else encoded, formats=FORMATS)
    if image.info.get("progressive"):
        try:
            _check_scans(content(encoded), *image.size)
        except Damaged:
            image.close()
            raise
    return image


class _AsDamaged:
    """Whatever is raised inside becomes `Damaged`, with a line that says why. (`contextlib` would take a tenth of the
    time of a small image.)"""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, UnidentifiedImageError):
            raise Damaged("not an image") from None
        if isinstance(error, Exception) and not isinstance(error, Damaged):
            # On damaged files, Pillow's readers raise nearly anything.
            message = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise Damaged(message.splitlines()[0] if message else type(error).__name__) from error


as_damaged = _AsDamaged()


def _orientation(image: Image.Image) -> int:
    if image.format == "JPEG" and not image.info.keys() & TURNED_BY:
        return 1  # what the next line would find out, in a tenth of a small image's time
    return image.getexif().get(ExifTags.Base.Orientation, 1)


def _decode_jpeg(encoded: Path | bytes) -> np.ndarray | None:
    """The pixels of a plain JPEG, in less time than Pillow takes; None if simplejpeg refuses it.

    Both are built on libjpeg-turbo, and give the same pixels.
    """
    try:
        return decode_jpeg(content(encoded), colorspace="RGB", strict=True)  # what is odd about a file raises
    except (RuntimeError, ValueError):
        return None  # Pillow says what is wrong with it


def plain_shape(encoded: Path | bytes) -> tuple[int, int] | None:
    """The height and width of a JPEG in which nothing is unusual up to its pixels; None of anything else.

    Pillow takes ten times as long to open a file. What is not None here it opens too, and finds the same size in it, an
    upright image, grey or RGB, and a single baseline frame.
    """
    if not isinstance(encoded, bytes) or not encoded.startswith(b"\xff\xd8") or len(encoded) > LARGEST_FILE:
        return None
    shape, place = None, 2
    while place + SEGMENT.size + FRAME.size <= len(encoded):
        start, kind, length = SEGMENT.unpack_from(encoded, place)
        begin, place = place + SEGMENT.size, place + 2 + length
        if start != 0xFF or length < 2 or place > len(encoded):
            return None
        if kind == START_OF_SCAN:
            return shape
        if kind == START_OF_FRAME:
            bits, height, width, channels = FRAME.unpack_from(encoded, begin)
            expected = bits == 8 and channels in (1, 3) and length == 2 + FRAME.size + 3 * channels
            if shape or not expected or not 0 < height * width <= MOST_PIXELS:
                return None
            shape = height, width
        elif kind == QUANTISATION:
            if (length - 2) % 65 or any(table > 15 for table in encoded[begin:place:65]):  # 64 values of 8 bits
                return None
        else:
            prefix = HARMLESS.get(kind)
            if prefix is None or not encoded.startswith(prefix, begin) or (prefix and length < 16):
                return None
    return None


def weight(encoded: Encoded) -> int:
    """The bytes of memory that an image takes before it is decoded, about."""
    if isinstance(encoded, Image.Image):
        return 4 * encoded.width * encoded.height
    if isinstance(encoded, Deep):
        return weight(encoded.encoded)
    if isinstance(encoded, np.ndarray | Reduced):
        return encoded.nbytes if isinstance(encoded, np.ndarray) else encoded.pixels.nbytes
    return len(encoded) if isinstance(encoded, bytes) else 0


def content(encoded: Encoded) -> bytes:
    """The bytes of an image as it is kept; none of one that cannot be read."""
    if isinstance(encoded, Deep):
        return content(encoded.encoded)
    if isinstance(encoded, Reduced | Damaged):
        return content(encoded.pixels) if isinstance(encoded, Reduced) else b""
    if isinstance(encoded, np.ndarray | Image.Image):
        return encoded.tobytes()
    if isinstance(encoded, Path):
        try:
            return _read_file(encoded)
        except Damaged:
            return b""
    return encoded or b""


def _check_file(status: os.stat_result) -> None:
    if not S_ISREG(status.st_mode):  # reading from a pipe or a device might never end
        raise Damaged("not a file")
    if status.st_size > LARGEST_FILE:
        raise Damaged(f"{status.st_size:,} bytes are more than an image may have")


def _squared(pixels: np.ndarray, size: int) -> np.ndarray:
    """The centre square of pixels (H x W x 3, uint8) at a size."""
    return pixels if pixels.shape[:2] == (size, size) else np.asarray(_square(Image.fromarray(pixels), size))


def _square(image: Image.Image, size: int) -> Image.Image:
    if image.size == (size, size):
        return image
    edge = min(image.size)
    left, top = ((side - edge) // 2 for side in image.size)  # whole pixels, as torch and torchvision cut
    centre = image.crop((left, top, left + edge, top + edge))
    return centre.resize((size, size), Image.Resampling.BILINEAR)  # Pillow's filters are antialiased


def _check_pixels(width: int, height: int, most: int = MOST_PIXELS) -> None:
    if width * height > most:
        raise Damaged(f"{width}x{height} are more than {most:,} pixels")


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


def _upright(image: Image.Image, white: int | None) -> Image.Image:
    """An image of any mode as RGB, turned upright."""
    if image.mode == "F":
        raise Damaged("floating-point pixels, whose range is unknown")
    deep, deep_colours = image.mode.startswith("I"), ";16" in str(getattr(image, "tile", ""))
    declared = _declared_white(image) if deep else None
    inverted = deep and isinstance(image, TiffImageFile) and image.tag_v2.get(TIFF_PHOTOMETRIC) == WHITE_IS_ZERO
    upright = image if _orientation(image) == 1 else ImageOps.exif_transpose(image)
    if deep:
        pixels = _eight_bits(np.asarray(upright), declared or white)
        return Image.fromarray(255 - pixels if inverted else pixels).convert("RGB")
    if "A" in upright.getbands() or "transparency" in upright.info:
        upright = upright.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", upright.size, "white"), upright).convert("RGB")
    upright = upright if upright.mode == "RGB" else upright.convert("RGB")
    if deep_colours and 0 < np.asarray(upright).max() < 64:  # Pillow keeps the upper 8 of 16 bits
        raise Damaged("colours of 16 bits whose upper quarter is empty, so that their range is unknown; make them 8")
    return upright


def _declared_white(image: Image.Image) -> int | None:
    """The value of white that a file of integers declares: by TIFF's number of bits, or a PGM's largest value."""
    if isinstance(image, TiffImageFile):
        (bits, *_) = image.tag_v2.get(TIFF_BITS, (1,))
        if bits == 16 and SIGNED in image.tag_v2.get(TIFF_SAMPLES, ()):
            raise Damaged("signed integers, whose range is unknown; convert it to 8 bits")
        return 2**bits - 1 if bits < 16 else None
    scaled = image.format == "PPM" and isinstance(image, ImageFile) and image.tile and image.tile[0][0] == "ppm"
    return WHITES[-1] if scaled else None  # Pillow has scaled them to that


def _eight_bits(values: np.ndarray, white: int | None) -> np.ndarray:
    """Integers from 0 to white as bytes."""
    low, high = int(values.min()), int(values.max())
    if low < 0:
        raise Damaged(f"values from {low:,} to {high:,}, whose range is unknown; convert it to 8 bits")
    if white is None:
        white = WHITES[-1]
        if high > white or 0 < high <= WHITES[-2]:
            raise Damaged(f"values up to {high:,}, whose range is unknown; convert it to 8 bits")
    if high > white:
        raise Damaged(f"a value of {high:,} where white is {white:,}")
    return ((values.astype(np.int64) * 255 + white // 2) // white).astype(np.uint8)
