"""From an image file's bytes to pixels: by simplejpeg and by Pillow the same."""

from __future__ import annotations

import struct
import zlib
from functools import partial
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from rich.console import Console

from us3l.data import decode as decoding
from us3l.data.decode import Damaged, Deep, decode, measure, plain_shape
from us3l.data.images import Step
from us3l.data.sources import find, load
from us3l.data.view_settings import Views
from us3l.system.progress import Screen


def photo(
    height: int = 200, width: int = 301, mode: str = "RGB", turned: int | None = 1, quality: int = 95, **options: Any
) -> bytes:
    """A JPEG of smooth shapes, as photographs have them; Exif tells how it was turned, unless that is None."""
    random = np.random.default_rng(height + width)
    small = Image.fromarray(random.integers(0, 256, (9, 12, 3), np.uint8)).resize(
        (width, height), Image.Resampling.BICUBIC
    )
    if turned is not None:
        options["exif"] = Image.Exif()
        options["exif"][0x0112] = turned
    file = BytesIO()
    small.convert(mode).save(file, "JPEG", quality=quality, **options)
    return file.getvalue()


def by_pillow(content: bytes, size: int | None = None) -> np.ndarray:
    """What `decode` gives without simplejpeg."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding, "_decode_jpeg", lambda _: None)
        return decode(content, size)


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("turned", [None, 1, 3, 6])
def test_the_quick_decoder_gives_the_same_pixels(mode: str, turned: int | None) -> None:
    for content in (photo(33, 47, mode, turned), photo(33, 47, mode, turned, progressive=True)):
        fast = decode(content)
        assert measure(content) == fast.shape[:2] == ((47, 33) if turned == 6 else (33, 47))
        assert np.array_equal(fast, by_pillow(content))


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0", "4:1:1"])
def test_noise_has_the_same_pixels(subsampling: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (45, 67, 3), np.uint8)
    for quality in (30, 95, 100):
        file = BytesIO()
        Image.fromarray(noise).save(file, "JPEG", quality=quality, subsampling=subsampling)
        fast = decode(file.getvalue())
        assert np.array_equal(fast, by_pillow(file.getvalue()))


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize(("height", "width"), [(32, 32), (33, 47), (127, 130), (128, 200), (20, 9)])
def test_squares_have_the_same_pixels(height: int, width: int, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 32 pixels; from four times that on, both leave it to Pillow to reduce the image while it decodes."""
    content, opened, pillow = photo(height, width, mode, turned=None), [], Image.open
    monkeypatch.setattr(Image, "open", lambda *values, **names: opened.append(values) or pillow(*values, **names))
    fast = decode(content, 32)
    assert len(opened) == (min(height, width) >= 128)
    assert np.array_equal(fast, by_pillow(content, 32))


def test_damage_reads_the_same_to_both_decoders() -> None:
    whole, plain = photo(), photo(turned=None)
    for content in (whole[:-800], plain[:-800], b"", b"nothing", whole[:300], plain[:300]):
        said = []
        for decoding_by in (decode, by_pillow):
            with pytest.raises(Damaged) as error:
                decoding_by(content)
            said.append(str(error.value))
        assert said[0] == said[1]


@pytest.mark.parametrize(
    ("options", "plain"),
    [
        ({}, True),
        ({"mode": "L", "comment": b"grey"}, True),
        ({"icc_profile": b"p" * 70_000, "subsampling": 0, "optimize": True, "restart_marker_rows": 1}, True),
        ({"mode": "CMYK"}, False),
        ({"progressive": True}, False),
        ({"turned": 1}, False),
        ({"turned": 6}, False),
        ({"xmp": b'<x tiff:Orientation="6"/>'}, False),
    ],
)
def test_plain_jpegs_are_measured_without_pillow(
    options: dict[str, Any], plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = photo(**{"height": 33, "width": 47, "turned": None} | options)
    assert plain_shape(content) == ((33, 47) if plain else None)
    opened: list[object] = []
    pillow = Image.open
    monkeypatch.setattr(Image, "open", lambda *values, **names: opened.append(values) or pillow(*values, **names))
    assert decode(content).shape[:2] == measure(content)
    assert len(opened) == (0 if plain else 2)


def test_unusual_headers_are_left_to_pillow() -> None:
    plain, cmyk = photo(33, 47, turned=None), photo(33, 47, "CMYK", turned=None)
    frame = plain.index(b"\xff\xc0")
    size = frame + 5  # of height and width, two bytes each
    unusual = {
        "short JFIF": plain[:2] + b"\xff\xe0\x00\x08JFIF\0\1" + plain[2:],
        "unknown APP0": plain[:2] + b"\xff\xe0\x00\x10" + bytes(14) + plain[2:],
        "several pictures": plain[:2] + b"\xff\xe2\x00\x12MPF\0" + bytes(12) + plain[2:],
        "two frames": plain[: frame + 19] + plain[frame:],
        "a frame that is too long": plain[: frame + 3]
        + b"\x12"
        + plain[frame + 4 : frame + 19]
        + b"\0"
        + plain[frame + 19 :],
        "no rows": plain[:size] + bytes(2) + plain[size + 2 :],
        "CMYK without Adobe's segment": cmyk[:2] + cmyk[cmyk.index(b"\xff\xdb") :],
        "no frame": plain[:frame] + plain[frame + 19 :],
        "nothing after the frame": plain[: frame + 19],
    }
    assert plain_shape(plain) == (33, 47)
    assert [name for name, content in unusual.items() if plain_shape(content) is not None] == []


def test_what_is_measured_without_pillow_is_what_pillow_makes_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of headers in which anything may be changed, left out or missing: the same sizes, pixels and complaints."""
    random = np.random.default_rng(0)
    kinds = [0, 1, 16, 255, *decoding.HARMLESS, 0xC0, 0xC1, 0xC2, 0xDA, 0xDB, 0xE1]
    plain = 0
    for whole in (photo(21, 29, turned=None), photo(21, 29, "L", turned=None, icc_profile=b"p" * 30)):
        header = whole.index(b"\xff\xda") + 12
        for place in range(header):
            values = [*random.choice(kinds, 2), whole[place] ^ 1]
            changed = [whole[:place] + bytes([value]) + whole[place + 1 :] for value in values]
            for content in (*changed, whole[:place], whole[:place] + whole[place + 1 :]):
                if plain_shape(content) is None:
                    continue  # is given to Pillow
                plain += 1
                quickly = outcomes(content)
                with monkeypatch.context() as without:
                    without.setattr(decoding, "plain_shape", lambda _: None)
                    assert quickly == outcomes(content)
    assert plain > 1000


def outcomes(content: bytes) -> list[object]:
    """What becomes of an image when it is measured, decoded, and decoded with a limit."""
    found: list[object] = []
    for attempt in (measure, decode, partial(decode, most=600)):
        try:
            result = attempt(content)
            found.append(result if isinstance(result, tuple) else (result.shape, result.tobytes()))
        except Damaged as error:
            found.append(str(error))
    return found


def test_limits_hold_without_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    content = photo(40, 50, turned=None)
    with pytest.raises(Damaged, match=r"50x40 are more than 1,999 pixels"):
        decode(content, most=1999)
    assert decode(content, most=2000).shape == (40, 50, 3)
    monkeypatch.setattr(decoding, "MOST_PIXELS", 1999)
    assert plain_shape(content) is None
    monkeypatch.undo()
    monkeypatch.setattr(decoding, "LARGEST_FILE", len(content) - 1)
    assert plain_shape(content) is None
    for attempt in (measure, decode):
        with pytest.raises(Damaged, match="bytes are more than an image may have"):
            attempt(content)


def tiff(values: np.ndarray, signed: bool = False, white_is_zero: bool = False, turned: int = 1) -> bytes:
    """A plain TIFF of one channel, written by hand: Pillow does not write all kinds that cameras do."""
    content = np.ascontiguousarray(values).tobytes()
    height, width = values.shape
    tags = {256: width, 257: height, 258: 8 * values.itemsize, 259: 1, 262: 0 if white_is_zero else 1, 273: 8}
    tags |= {274: turned, 277: 1, 278: height, 279: len(content), 339: 2 if signed else 1}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    start = struct.pack("<4sI", b"II*\0", 8 + len(content))
    return start + content + struct.pack("<H", len(tags)) + entries + bytes(4)


RAMP = np.linspace(0, 1, 48 * 64).reshape(48, 64)


@pytest.mark.parametrize("turned", [1, 3, 5, 6, 7, 8])
def test_turned_tiffs_have_the_shape_of_their_pixels(turned: int, tmp_path: Path) -> None:
    """Of a file as of its bytes: Pillow maps plain TIFFs into memory by the sides that it has swapped before."""
    content = tiff((255 * RAMP).astype(np.uint8), turned=turned)
    (tmp_path / "turned.tif").write_bytes(content)
    expected = ImageOps.exif_transpose(Image.open(BytesIO(content)))
    assert expected.size == ((64, 48) if turned in (1, 3) else (48, 64))
    for encoded in (content, tmp_path / "turned.tif"):
        assert measure(encoded) == decode(encoded).shape[:2] == expected.size[::-1]
        assert np.array_equal(decode(encoded)[..., 0], np.asarray(expected))


def test_crops_of_turned_tiffs_are_not_squeezed(tmp_path: Path) -> None:
    """Circles stay circles, but for the proportions of the crop."""
    rows, columns = np.mgrid[:60, :120]
    circle = (255 * ((rows - 30) ** 2 + (columns - 60) ** 2 < 20**2)).astype(np.uint8)
    (tmp_path / "turned.tif").write_bytes(tiff(circle, turned=6))
    views = Views(size=60, crop_scale=(1.0, 1.0), flip=0, jitter=0, grey=0)
    steps = [Step(0, 0, torch.zeros(1, dtype=torch.long))]
    (batch,) = find(tmp_path, "all").views(views, steps, 0, mean=(0, 0, 0), std=(1, 1, 1), workers=0)
    across, down = ((batch.views[0][0, 0] > 0.5).any(dim=side).sum() for side in (0, 1))
    assert 0.7 < down / across < 1.4  # a crop's own proportions are within 3:4


@pytest.mark.parametrize(
    ("dtype", "bits"), [("<u2", 8), ("<u2", 10), ("<u2", 12), ("<u2", 14), ("<u2", 16), ("<i4", 8), ("<u4", 12)]
)
def test_integers_are_scaled_by_the_range_of_their_data_set(dtype: str, bits: int, tmp_path: Path) -> None:
    white = 2**bits - 1
    for number, share in enumerate((1.0, 0.5, 0.01)):
        values = (share * white * RAMP).round().astype(dtype)
        (tmp_path / f"{number}.tif").write_bytes(tiff(values, signed=dtype == "<i4"))
    said = StringIO()
    images = load(tmp_path, "all", 64, progress=Screen(Console(file=said)))
    brightest = images.images.flatten(1).amax(dim=1).tolist()
    assert 250 <= brightest[0] <= 255
    assert abs(brightest[1] - 127) <= 2
    assert brightest[2] <= 3
    assert f"read as {bits} bits: white is {white:,}" in said.getvalue()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (tiff((4095 * RAMP).astype("<u2")), "values up to 4,095, whose range is unknown"),
        (tiff((2e9 * RAMP).astype("<i4"), signed=True), "values up to 2,000,000,000, whose range is unknown"),
        (tiff((4e9 * RAMP).astype("<u4")), "whose range is unknown"),
        (tiff((60_000 * RAMP - 30_000).astype("<i2"), signed=True), "signed integers"),
    ],
)
def test_integers_of_unknown_range_are_refused(content: bytes, said: str) -> None:
    with pytest.raises(Damaged, match=said):
        decode(content)


def test_an_image_brighter_than_its_data_set_is_refused() -> None:
    content = tiff((5000 * RAMP).astype("<u2"))
    assert decode(Deep(content, 16383)).max() == round(255 * 5000 / 16383)
    with pytest.raises(Damaged, match="a value of 5,000 where white is 4,095"):
        decode(Deep(content, 4095))


def test_white_may_be_zero() -> None:
    dark = decode(tiff((65535 * RAMP).astype("<u2"), white_is_zero=True))[..., 0]
    assert (dark[0, 0], dark[-1, -1]) == (255, 0)


def test_dark_colours_of_sixteen_bits_are_refused() -> None:
    """Pillow reads the upper 8 bits alone: of 12-bit colours there are 4 left."""

    def png(white: int) -> bytes:
        rows = np.zeros((8, 1 + 6 * 8), np.uint8)
        rows[:, 1:] = np.frombuffer(np.full((8, 24), white, ">u2").tobytes(), np.uint8).reshape(8, -1)
        header = struct.pack(">IIBBBBB", 8, 8, 16, 2, 0, 0, 0)
        chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes())), (b"IEND", b"")]
        parts = (
            struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
            for name, body in chunks
        )
        return b"\x89PNG\r\n\x1a\n" + b"".join(parts)

    assert decode(png(65535)).min() == 255
    assert decode(png(0)).max() == 0
    with pytest.raises(Damaged, match="range is unknown"):
        decode(png(4095))
