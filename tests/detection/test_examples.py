from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.shapes import draw, write_coco
from us3l.data.decode import Damaged
from us3l.detection.examples import Examples, example, mirrored, pixels
from us3l.detection.scenes import load


@pytest.fixture
def train(tmp_path):
    return load(write_coco(tmp_path, train2017=2, val2017=1))[0]


def test_tensors_of_a_scene(train):
    image, target = example(train.scenes[1], masks=True)
    drawn, objects = draw(1)
    np.testing.assert_array_equal(image.permute(1, 2, 0).numpy(), drawn)
    assert target["labels"].tolist() == [2, 1]  # disc, block; 0 is the background
    for box, mask, (_, truth) in zip(target["boxes"], target["masks"], objects, strict=True):
        np.testing.assert_array_equal(mask.numpy(), truth)
        left, top, right, bottom = box.int().tolist()
        assert truth[top:bottom, left:right].sum() == truth.sum()
        assert truth[top, left:right].any()
        assert truth[top:bottom, right - 1].any()
    assert "masks" not in example(train.scenes[1], masks=False)[1]


def test_mirrored_boxes_fit_mirrored_masks(train):
    image, target = example(train.scenes[0], masks=True)
    flipped, other = mirrored(image, target)
    assert torch.equal(flipped.flip(-1), image)
    for box, mask in zip(other["boxes"].int(), other["masks"], strict=True):
        left, top, right, bottom = box.tolist()
        assert mask[top:bottom, left:right].sum() == mask.sum()
        assert mask[:, left].any()
    assert torch.equal(mirrored(flipped, other)[1]["boxes"], target["boxes"])


def test_crowds_are_not_learned_and_boxes_end_with_the_image(train):
    first, second = train.scenes[0].instances
    outside = replace(second, box=(100.0, 5.0, 10.0, 10.0))
    large = replace(second, box=(-5.0, 40.0, 500.0, 500.0))
    scene = replace(train.scenes[0], instances=(replace(first, crowd=True), outside, large))
    _, target = example(scene, masks=True)
    assert target["boxes"].tolist() == [[0, 40, 64, 48]]
    assert target["masks"].shape == (1, 48, 64)
    nothing = example(replace(scene, instances=()), masks=True)[1]
    assert nothing["boxes"].shape == (0, 4)
    assert nothing["masks"].shape == (0, 48, 64)
    assert nothing["labels"].dtype == torch.int64


def test_damaged_images_say_why(train):
    scene = train.scenes[0]
    with pytest.raises(Damaged, match="the image is 64x48, but annotated as 48x64"):
        pixels(replace(scene, size=(48, 64)))
    assert pixels(replace(scene, size=None)).shape == (48, 64, 3)
    scene.image.write_bytes(b"no image")
    found = Examples(train, masks=False)[0, False]
    assert found == f"{scene.image}: not an image"
    assert not isinstance(Examples(train, masks=False)[1, True], str)
