"""What workers make of images: decoded as small as will do, cut, resized; and who does the rest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms.v2.functional import resized_crop

from tests.data.test_decode import photo
from us3l.data import crops
from us3l.data import decode as decoding
from us3l.data.augment import DRAWN, apply, crop_box, draw, drawn
from us3l.data.crops import reduction, resized, square, stacked
from us3l.data.decode import MOST_PIXELS, decode
from us3l.data.images import Step
from us3l.data.sources import find
from us3l.data.view_settings import Views
from us3l.system.seeds import seeded

VIEWS = Views(size=24, blur=0.5, solarise=0.3)


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
    kept, made = [], crops.Read
    monkeypatch.setattr(crops, "Read", lambda *values: kept.append(made(*values)) or kept[-1])
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

    monkeypatch.setattr(crops, "decode", lambda encoded, by: factors.append(by) or full(encoded, by=by))
    reduced = views()
    assert set(factors) <= {4, 8}
    monkeypatch.setattr(crops, "reduction", lambda *_: 1)
    assert (reduced - views()).abs().mean() < 0.1  # edges lie on reduced pixels; other boxes differ by about 1


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
def test_evaluation_sees_what_pillow_makes_of_an_image(height: int, width: int) -> None:
    """Within 2 of 255, also where the sides differ by an odd number of pixels."""
    content, size = photo(height, width), 73
    expected = torch.from_numpy(decode(content, size).copy()).permute(2, 0, 1).int()
    found = square(content, size).int()
    assert found.shape == (3, size, size)
    assert (found - expected).abs().max() <= 2
    assert ((found - expected).abs() > 1).float().mean() < 0.001
