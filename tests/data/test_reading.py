"""What workers make of images: decoded as small as will do, cut, resized; and who does the rest."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import partial
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms.v2.functional import resized_crop

from us3l.data import decode as decoding
from us3l.data import reading, sandbox
from us3l.data.augment import DRAWN, apply, crop_box, draw, drawn
from us3l.data.decode import MOST_PIXELS, Damaged, decode, measure, plain_shape, quick_decoder
from us3l.data.images import Step
from us3l.data.reading import reduction, resized, square, stacked
from us3l.data.sources import find
from us3l.data.view_settings import Views
from us3l.system.seeds import seeded

VIEWS = Views(size=24, blur=0.5, solarise=0.3)


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


@pytest.mark.parametrize(("height", "width"), [(48, 64), (64, 48), (300, 7), (1, 1), (1000, 1001)])
def test_a_box_alone_is_the_one_of_the_batch(height: int, width: int) -> None:
    views = Views(crop_scale=(0.2, 1.0))
    uniform = torch.rand(1500, DRAWN, generator=seeded(1), dtype=torch.float64)
    boxes = draw(views, 1500, height, width, seeded(1)).boxes
    assert [crop_box(views.crop_scale, row, height, width) for row in uniform.tolist()] == [
        tuple(b) for b in boxes.tolist()
    ]


def test_jpegs_are_decoded_as_small_as_every_crop_allows() -> None:
    for shortest, by in ((223, 1), (447, 1), (448, 2), (900, 4), (1792, 8), (9999, 8)):
        assert reduction([(0, 0, shortest, 3000), (0, 0, 3000, 3000)], 224, 9 * 10**6) == by
    # One that is too large is reduced until it is not.
    assert reduction([(0, 0, 300, 300)], 224, MOST_PIXELS) == 1
    assert reduction([(0, 0, 300, 300)], 224, MOST_PIXELS + 1) == 2
    assert reduction([(0, 0, 300, 300)], 224, 4 * MOST_PIXELS + 1) == 4


@pytest.mark.parametrize("kind", ["jpeg", "png", "turned"])
def test_streamed_views_are_those_of_torchvisions_operations(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same as of the whole image, decoded in full, but for the rounding of bytes."""
    (tmp_path / "photo.jpg").write_bytes(photo(61, 80, turned=6 if kind == "turned" else 1))
    if kind == "png":
        Image.open(tmp_path / "photo.jpg").save(tmp_path / "photo.png")
        (tmp_path / "photo.jpg").unlink()
    files = find(tmp_path, "all")
    kept, made = [], reading.Read
    monkeypatch.setattr(reading, "Read", lambda *values: kept.append(made(*values)) or kept[-1])
    (batch,) = files.views(
        VIEWS, [Step(0, 2, torch.zeros(40, dtype=torch.long))], 5, mean=(0, 0, 0), std=(1, 1, 1), workers=0
    )
    pixels = torch.from_numpy(decode(next(files.source.read(np.array([0])))).copy()).permute(2, 0, 1)
    assert pixels.shape[1:] == ((80, 61) if kind == "turned" else (61, 80))
    for view, shown in enumerate(batch.views):
        uniform = torch.from_numpy(kept[0].uniform)[:, view]
        expected = apply(
            pixels[None].expand(40, -1, -1, -1),
            drawn(VIEWS, uniform[:, :DRAWN], uniform[:, DRAWN], torch.from_numpy(kept[0].boxes)[:, view]),
        )
        assert (shown - expected).abs().mean() < 0.005
        assert (
            (shown - expected).abs().amax(dim=(1, 2, 3)) < 0.05
        ).float().mean() > 0.9  # solarising turns a little over
    assert torch.equal(batch.views[0][0], batch.views[0][1])  # one image, one epoch


def test_a_reduced_image_gives_nearly_the_same_views(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "photo.jpg").write_bytes(photo(600, 801))
    files, steps = find(tmp_path, "all"), [Step(epoch, epoch, torch.zeros(1, dtype=torch.long)) for epoch in range(20)]
    factors: list[int] = []
    full = decoding.decode
    plain = Views(size=24, flip=0, jitter=0, grey=0)

    def views() -> torch.Tensor:
        return torch.cat([batch.views[0] for batch in files.views(plain, steps, 0, workers=0)])

    monkeypatch.setattr(reading, "decode", lambda encoded, by: factors.append(by) or full(encoded, by=by))
    reduced = views()
    assert set(factors) <= {4, 8}
    monkeypatch.setattr(reading, "reduction", lambda *_: 1)
    assert (reduced - views()).abs().mean() < 0.1  # edges lie on reduced pixels; other boxes differ by about 1


@pytest.fixture(params=["torchvision", "simplejpeg"])
def quick(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Either of the quick decoders."""
    if request.param == "simplejpeg":
        pytest.importorskip("simplejpeg")
    else:
        monkeypatch.setitem(sys.modules, "simplejpeg", None)  # importing it fails
    quick_decoder.cache_clear()
    yield
    quick_decoder.cache_clear()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("turned", [None, 1, 3, 6])
def test_the_quick_decoder_gives_the_same_pixels(
    mode: str, turned: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for content in (photo(33, 47, mode, turned), photo(33, 47, mode, turned, progressive=True)):
        monkeypatch.setattr(decoding, "_quick", True)
        fast = decode(content)
        assert measure(content) == fast.shape[:2] == ((47, 33) if turned == 6 else (33, 47))
        monkeypatch.setattr(decoding, "_quick", False)
        assert np.array_equal(fast, decode(content))


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0", "4:1:1"])
def test_noise_has_the_same_pixels(subsampling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (45, 67, 3), np.uint8)
    for quality in (30, 95, 100):
        file = BytesIO()
        Image.fromarray(noise).save(file, "JPEG", quality=quality, subsampling=subsampling)
        monkeypatch.setattr(decoding, "_quick", True)
        fast = decode(file.getvalue())
        monkeypatch.setattr(decoding, "_quick", False)
        assert np.array_equal(fast, decode(file.getvalue()))


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize(("height", "width"), [(32, 32), (33, 47), (127, 130), (128, 200), (20, 9)])
def test_squares_have_the_same_pixels(height: int, width: int, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 32 pixels; from four times that on, both leave it to Pillow to reduce the image while it decodes."""
    content, opened, pillow = photo(height, width, mode, turned=None), [], Image.open
    monkeypatch.setattr(decoding, "_quick", False)
    expected = decode(content, 32)
    monkeypatch.setattr(Image, "open", lambda *values, **names: opened.append(values) or pillow(*values, **names))
    monkeypatch.setattr(decoding, "_quick", True)
    assert np.array_equal(decode(content, 32), expected)
    assert len(opened) == (min(height, width) >= 128)


def test_whoever_has_readers_of_standard_error_is_quick_only_with_simplejpeg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "_quick", False)
    monkeypatch.setitem(sys.modules, "simplejpeg", None)  # importing it fails
    decoding.quicken(aloud=False)
    assert not decoding._quick
    monkeypatch.setitem(sys.modules, "simplejpeg", SimpleNamespace(decode_jpeg=lambda _: None))
    decoding.quicken(aloud=False)
    assert decoding._quick


def test_simplejpeg_is_preferred_and_pillow_decodes_what_it_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def refuse(_: bytes, **options: Any) -> np.ndarray:
        asked.append(options)
        raise ValueError("extraneous bytes before marker 0xd9")

    content = photo(33, 47, turned=None)
    expected = decode(content)
    monkeypatch.setitem(sys.modules, "simplejpeg", SimpleNamespace(decode_jpeg=refuse))
    monkeypatch.setattr(decoding, "_quick", True)
    quick_decoder.cache_clear()
    try:
        assert np.array_equal(decode(content), expected)
    finally:
        quick_decoder.cache_clear()
    assert asked == [{"colorspace": "RGB", "strict": True}]  # once


@pytest.mark.usefixtures("quick")
def test_damage_reads_the_same_to_both_decoders(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, plain = photo(), photo(turned=None)
    for content in (whole[:-800], plain[:-800], b"", b"nothing", whole[:300], plain[:300]):
        said = []
        for fast in (False, True):
            monkeypatch.setattr(decoding, "_quick", fast)
            with pytest.raises(Damaged) as error:
                decode(content)
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
    monkeypatch.setattr(decoding, "_quick", True)
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


@pytest.mark.usefixtures("quick")
def test_what_is_measured_without_pillow_is_what_pillow_makes_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of headers in which anything may be changed, left out or missing: the same sizes, pixels and complaints."""
    monkeypatch.setattr(decoding, "_quick", True)
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
    monkeypatch.setattr(decoding, "_quick", True)
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


@pytest.mark.parametrize("shape", [(24, 24), (61, 30), (7, 90)])
def test_boxes_are_resized_as_torchvision_does(shape: tuple[int, int]) -> None:
    pixels = decode(photo(61, 80))
    whole = torch.from_numpy(pixels.copy()).permute(2, 0, 1)
    boxes = [(0, 0, 61, 80), (3, 5, 50, 60), (60, 79, 1, 1)]
    expected = [resized_crop(whole, *box, list(shape), antialias=True) for box in boxes]
    found = stacked([resized(pixels, box, shape) for box in boxes])
    assert found.is_contiguous()
    assert torch.equal(found, torch.stack(expected))


@pytest.mark.parametrize(("height", "width"), [(200, 300), (201, 300), (300, 201), (200, 200), (97, 640), (20, 31)])
@pytest.mark.parametrize("sandboxed", ["0", "1"])
def test_evaluation_sees_what_pillow_makes_of_an_image(
    height: int, width: int, sandboxed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within 2 of 255, also where the sides differ by an odd number of pixels."""
    content, size = photo(height, width), 73
    expected = torch.from_numpy(decode(content, size).copy()).permute(2, 0, 1).int()
    monkeypatch.setenv(sandbox.VARIABLE, sandboxed)
    found = square(content, size).int()
    assert found.shape == (3, size, size)
    assert (found - expected).abs().max() <= 2
    assert ((found - expected).abs() > 1).float().mean() < 0.001
    while sandbox._free[os.getpid()]:
        sandbox._free[os.getpid()].pop().close()


def test_the_same_workers_read_all_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        (tmp_path / f"{number}.jpg").write_bytes(photo(40 + number, 50))
    names = tmp_path / "names"
    names.mkdir()
    cut = reading.RandomCrops.cut

    def noted(*given: Any) -> Any:
        (names / str(os.getpid())).touch()
        return cut(*given)

    monkeypatch.setattr(reading.RandomCrops, "cut", noted)
    asked: list[int] = []

    def steps() -> Any:
        for number in range(40):
            asked.append(number)
            yield Step(number, number // 2, torch.tensor([0, 1]) if number % 2 else torch.tensor([2, 3]))

    batches = find(sorted(tmp_path.glob("*.jpg")), "all").views(Views(size=8), steps(), 0, workers=2)
    assert next(batches).waited > 0
    assert len(asked) < 10  # only as they are needed
    assert sum(len(batch) for batch in batches) == 78
    assert len(list(names.iterdir())) == 2
