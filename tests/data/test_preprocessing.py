"""One way for an image to look, for networks of every origin and for files of every kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms.v2 import functional as TV

import us3l
from us3l.data.preprocessing import Preprocessing
from us3l.data.view_settings import MEAN, STD
from us3l.deploy import example
from us3l.runtime.inputs import batches
from us3l.system.errors import UserError

PLAIN = {"size": 16, "resize": 18, "mean": [0.5, 0.5, 0.5], "std": [0.2, 0.2, 0.2]}


def test_the_usual_one_cuts_the_border_of_large_images() -> None:
    assert [Preprocessing.usual(size).resize for size in (224, 64, 63, 32)] == [256, 73, 63, 32]


def test_plain_values_and_back() -> None:
    assert Preprocessing.from_plain(PLAIN).to_plain() == PLAIN


def test_older_files_have_the_usual_values() -> None:
    old = {"size": 224, "mean": [0.5] * 3, "std": [0.2] * 3}
    assert Preprocessing.from_plain(old) == Preprocessing(224, 256, (0.5, 0.5, 0.5), (0.2, 0.2, 0.2))
    assert Preprocessing.from_plain({"size": 8}) == Preprocessing(8, 8, MEAN, STD)


@pytest.mark.parametrize(
    "change",
    [
        {"size": 0},
        {"size": 4097, "resize": 5000},
        {"size": 10**400},
        {"size": True},
        {"size": 16.0},
        {"size": "16"},
        {"size": None},
        {"resize": 15},
        {"resize": 10**9},
        {"resize": None},
        {"std": [0.2, 0.0, 0.2]},
        {"std": [0.2, -0.2, 0.2]},
        {"std": [0.2, 1e-300, 0.2]},
        {"std": [0.2, float("nan"), 0.2]},
        {"mean": [0.5, float("inf"), 0.5]},
        {"mean": [0.5, 10**400, 0.5]},
        {"mean": [0.5, 0.5]},
        {"mean": "0.5"},
        {"mean": None},
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"preprocessing: ({'|'.join(change)}) must be"):
        Preprocessing.from_plain(PLAIN | change)


@pytest.mark.parametrize("values", [None, [], {}, {"mean": [0.5] * 3}])
def test_what_is_not_a_preprocessing_is_refused(values: Any) -> None:
    with pytest.raises(UserError, match="expected size, resize, mean and std"):
        Preprocessing.from_plain(values)


def test_of_a_network() -> None:
    net = us3l.create("resnet18", stem="cifar", base=8)
    assert Preprocessing.of(net) == Preprocessing.usual(32)
    assert Preprocessing.of(us3l.create("resnet18", base=8)) == Preprocessing.usual(224)
    assert Preprocessing.of(us3l.create("vit_tiny", image_size=48, patch=8, base=32, depth=1)).size == 48
    net.metadata["preprocessing"] = PLAIN
    assert Preprocessing.of(net) == Preprocessing.of(net, 16) == Preprocessing.from_plain(PLAIN)
    assert Preprocessing.of(net, 64) == replace(Preprocessing.from_plain(PLAIN), size=64, resize=73)


def test_pixels_become_what_torchvision_makes_of_them() -> None:
    images = torch.randint(0, 256, (2, 3, 48, 60), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    wanted = Preprocessing(24, 30, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    resized = TV.resize(TV.center_crop(images, [48, 48]).float() / 255, [30, 30], antialias=True)
    expected = TV.normalize(TV.center_crop(resized, [24, 24]), list(wanted.mean), list(wanted.std))
    torch.testing.assert_close(wanted.apply(images), expected)
    assert images.dtype == torch.uint8


def photo(width: int, height: int) -> Image.Image:
    """Smooth, with some noise, as photos are."""
    random = np.random.default_rng(width)
    coarse = Image.fromarray(random.integers(0, 256, (7, 9, 3), np.uint8)).resize((width, height))
    noise = random.normal(0, 12, (height, width, 3))
    return Image.fromarray((np.asarray(coarse) + noise).clip(0, 255).astype(np.uint8))


def jpeg(width: int, height: int, mode: str = "RGB", **options: Any) -> Callable[[Path], Path]:
    def save(folder: Path) -> Path:
        photo(width, height).convert(mode).save(folder / "photo.jpg", quality=92, **options)
        return folder / "photo.jpg"

    return save


def rotated(folder: Path) -> Path:
    exif = Image.Exif()
    exif[0x0112] = 6
    return jpeg(300, 200, exif=exif)(folder)


def png(mode: str) -> Callable[[Path], Path]:
    def save(folder: Path) -> Path:
        image = photo(120, 90)
        if mode == "RGBA":
            image.putalpha(Image.linear_gradient("L").resize(image.size))
        elif mode == "I;16":
            image = Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 200 + 77)
        image.save(folder / "photo.png")
        return folder / "photo.png"

    return save


FILES = {
    "jpeg-40": jpeg(40, 40),
    "jpeg-130": jpeg(130, 97),
    "jpeg-500": jpeg(500, 333),
    "jpeg-1200": jpeg(1200, 900),
    "jpeg-progressive": jpeg(700, 600, progressive=True),
    "jpeg-rotated": rotated,
    "jpeg-cmyk": jpeg(400, 300, "CMYK"),
    "jpeg-grey": jpeg(400, 300, "L"),
    "png-transparent": png("RGBA"),
    "png-16-bit": png("I;16"),
}


@pytest.mark.parametrize("size", [8, 32, 64, 96])
@pytest.mark.parametrize("kind", FILES)
def test_evaluation_deployment_and_the_example_see_the_same_pixels(kind: str, size: int, tmp_path: Path) -> None:
    """Below 64 pixels the example decoded JPEGs in full: 83 % of nearest neighbours agreed."""
    file, preprocessing = FILES[kind](tmp_path), Preprocessing.usual(size)
    decoded = preprocessing.decode(file)
    assert decoded.shape == (preprocessing.resize, preprocessing.resize, 3)
    np.testing.assert_array_equal(example.read(file, preprocessing.resize), decoded)
    expected = preprocessing.apply(torch.from_numpy(decoded.copy()).permute(2, 0, 1)[None]).numpy()
    np.testing.assert_array_equal(next(batches([file], preprocessing, 1)).pixels, expected)
    found = example.preprocess(file, {"preprocessing": preprocessing.to_plain()})
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize(("size", "resize"), [(16, 16), (13, 18), (224, 256)])
def test_a_few_images_are_prepared_to_the_bit_like_many(size: int, resize: int) -> None:
    preprocessing = Preprocessing(size, resize, (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.201))
    every = np.resize(np.arange(256, dtype=np.uint8), (2, resize, resize, 3)).transpose(0, 3, 1, 2)
    assert len(np.unique(every[:, 0, (resize - size) // 2 :, (resize - size) // 2 :][:, :size, :size])) > 150
    found = preprocessing.apply_decoded(list(every))
    np.testing.assert_array_equal(found, preprocessing.apply(torch.from_numpy(every.copy())).numpy())
