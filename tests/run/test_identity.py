"""The identity of labelled images, by which results that stand in one table are known to be of the same."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

import us3l
from us3l.data.sources import load, open_images
from us3l.run.identity import identify
from us3l.system.errors import UserError


@pytest.fixture
def photos(tmp_path):
    random = np.random.default_rng(0)
    for number in range(8):
        folder = tmp_path / "photos" / ("cat", "dog")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (8, 8, 3), np.uint8)).save(folder / f"{number}.bmp")
    return tmp_path / "photos"


def identity(photos):
    return identify(photos, *(load(photos, split, 8) for split in ("train", "test")))


def test_other_pixels_of_the_same_size_and_labels_are_other_images(photos):
    before = identity(photos)
    assert before.agrees(identity(photos))
    for path in photos.rglob("*.bmp"):
        Image.new("RGB", (8, 8), "red").save(path)
    after = identity(photos)
    assert after.checksum == before.checksum
    assert not after.agrees(before)
    for known in ("files", "pixels", "contents"):
        unknown = {name: None for name in ("files", "pixels", "contents") if name != known}
        assert not replace(after, **unknown).agrees(before)


def test_what_is_not_known_of_both_is_not_compared(photos):
    """Results of an earlier us3l have neither checksum of the images."""
    now = identity(photos)
    assert replace(now, files=None, pixels=None, contents=None).agrees(now)
    assert now.agrees(replace(now, files=None, pixels=None, contents=None))
    assert not replace(now, files=None, pixels=None, contents=None, test_images=1).agrees(now)


def test_streamed_images_are_those_in_memory(photos):
    streamed = identify(photos, *(open_images(photos, split, 8, stream=True) for split in ("train", "test")))
    assert streamed.pixels is streamed.contents is None
    assert streamed.files is not None
    assert streamed.agrees(identity(photos))
    assert identity(photos).agrees(streamed)


@pytest.mark.parametrize("stream", [True, False])
def test_a_table_does_not_join_results_of_a_replaced_image(tmp_path, stream):
    """Of the same size, and none of those that a fingerprint looks into."""
    random = np.random.default_rng(0)
    for number in range(100):
        folder = tmp_path / "photos" / ("cat", "dog")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (12, 10, 3), np.uint8)).save(folder / f"{number:02}.bmp")
    model = tmp_path / "model"
    us3l.create("resnet18", stem="cifar", base=8).save(model)

    def evaluate(width):
        return us3l.evaluate(model, data=tmp_path / "photos", widths=(width,), stream=stream, quality=False)

    assert evaluate(1.0).identity.contents
    assert len(evaluate(0.5).widths) == 2
    train = open_images(tmp_path / "photos", "train", stream=True)
    replaced = tmp_path / "photos" / train.source.name(train.chosen[3])
    assert train.fingerprint() == open_images(tmp_path / "photos", "train", stream=True).fingerprint()
    before = train.fingerprint()
    Image.fromarray(random.integers(0, 256, (12, 10, 3), np.uint8)).save(replaced)
    assert open_images(tmp_path / "photos", "train", stream=True).fingerprint() == before
    with pytest.raises(UserError, match=r"was made when .* held other images"):
        evaluate(0.25)
