import dataclasses
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as TV

from us3l.data import augment as V
from us3l.data.view_settings import Views

PLAIN = Views(flip=0, jitter=0, grey=0, blur=0)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def photos(count: int = 8, height: int = 32, width: int = 32) -> Tensor:
    """Smooth colourful images with some exactly grey, black and white pixels, where hue is special."""
    images = torch.nn.functional.interpolate(torch.rand(count, 3, 6, 6, generator=seeded(1)), (height, width))
    images[:, :, :4, :4] = 0.5
    images[:, :, -4:, -4:] = torch.tensor([0.0, 1.0]).repeat(8).view(4, 4)
    return images


def whole(count: int, size: int, **changes: Any) -> V.Draws:
    """Draws that leave images of this size as they are, but for the changes."""
    draws = V.Draws(
        size=size,
        boxes=torch.tensor([[0, 0, size, size]]).repeat(count, 1),
        flip=torch.zeros(count, dtype=torch.bool),
        factors=torch.tensor(V.NEUTRAL).repeat(count, 1),
        order=torch.arange(4).repeat(count, 1),
        grey=torch.zeros(count, dtype=torch.bool),
        sigma=torch.zeros(count),
        solarise=torch.zeros(count, dtype=torch.bool),
    )
    return dataclasses.replace(draws, **changes)


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


# Each operation equals torchvision's


@pytest.mark.parametrize("size", [8, 31, 32, 48])
def test_crop_equals_torchvision(size: int) -> None:
    images = photos(6, 40, 32)
    boxes = torch.tensor([[0, 0, 40, 32], [3, 5, 17, 20], [39, 31, 1, 1], [8, 0, 32, 32], [0, 2, 9, 30], [20, 4, 8, 8]])
    flip = torch.tensor([False, True, False, True, False, True])
    ours = V.apply(images, whole(6, size, boxes=boxes, flip=flip))
    for view, image, box, flipped in zip(ours, images, boxes.tolist(), flip, strict=True):
        theirs = TV.resized_crop(image, *box, size=[size, size], antialias=True)
        close(view, TV.horizontal_flip(theirs) if flipped else theirs)


@pytest.mark.parametrize(
    ("ours", "theirs", "factors"),
    [
        (V.BRIGHTNESS, TV.adjust_brightness, [0.0, 0.6, 1.0, 1.4, 3.0]),
        (V.CONTRAST, TV.adjust_contrast, [0.0, 0.6, 1.0, 1.4, 3.0]),
        (V.SATURATION, TV.adjust_saturation, [0.0, 0.6, 1.0, 1.4, 3.0]),
        (V.HUE, TV.adjust_hue, [-0.5, -0.1, 0.0, 0.07, 0.5]),
    ],
)
def test_colour_operations_equal_torchvision(ours: int, theirs, factors: list[float]) -> None:
    images = photos(len(factors))
    changes = torch.tensor(V.NEUTRAL).repeat(len(factors), 1)
    changes[:, ours] = torch.tensor(factors)
    result = V.apply(images, whole(len(factors), 32, factors=changes))
    close(result, torch.stack([theirs(image, factor) for image, factor in zip(images, factors, strict=True)]))


@pytest.mark.parametrize("size", [8, 32, 64])
def test_blur_equals_torchvision(size: int) -> None:
    images, sigma = photos(3, size, size), torch.tensor([0.1, 0.9, 2.0])
    kernel = 2 * V.blur_radius(size) + 1
    theirs = torch.stack(
        [TV.gaussian_blur(i, [kernel, kernel], [s, s]) for i, s in zip(images, sigma.tolist(), strict=True)]
    )
    close(V.blur(images, sigma), theirs)


def test_solarising_equals_torchvision() -> None:
    images = photos(4)
    ours = V.apply(images, whole(4, 32, solarise=torch.tensor([True, False, True, False])))
    close(ours[::2], TV.solarize(images[::2], 0.5))
    close(ours[1::2], images[1::2])
    pixels = (images * 255).to(torch.uint8)
    ours = V.apply(pixels, whole(4, 32, solarise=torch.ones(4, dtype=torch.bool)))
    close(ours, TV.solarize(pixels, 128) / 255)


def test_the_two_views_can_differ_in_kind() -> None:
    """As MoCo v3's do: the first always blurred, the second solarised."""
    images = photos(64)
    both = dataclasses.replace(PLAIN, size=32, crop_scale=(1.0, 1.0))
    settings = dataclasses.replace(both, blur=1.0, second_blur=0.0, solarise=0.0, second_solarise=1.0)
    first, _ = V.random_views(images, settings, seeded())
    assert torch.equal(first, V.random_views(images, dataclasses.replace(both, blur=1.0), seeded())[0])
    plain = V.draw(both, 64, 32, 32, seeded())
    assert not plain.solarise.any()
    drawn = V.draw(dataclasses.replace(both, solarise=0.2), 4000, 32, 32, seeded()).solarise
    assert 0.17 < drawn.float().mean() < 0.23
    # Boxes differ a little even at full scale, so compare where all is one colour.
    white = torch.ones(2, 3, 32, 32)
    first, second = V.random_views(white, settings, seeded())
    close(first, V.normalise(white))
    close(second, V.normalise(torch.zeros_like(white)))


def test_each_image_is_jittered_in_its_own_order() -> None:
    orders = torch.tensor(list(itertools.permutations(range(4))))
    factors = torch.tensor([1.4, 0.6, 1.3, 0.1]).repeat(24, 1)
    image = photos(1)
    ours = V.apply(image.repeat(24, 1, 1, 1), whole(24, 32, order=orders, factors=factors))
    operations = [TV.adjust_brightness, TV.adjust_contrast, TV.adjust_saturation, TV.adjust_hue]
    for view, order in zip(ours, orders.tolist(), strict=True):
        theirs = image[0]
        for operation in order:
            theirs = operations[operation](theirs, factors[0, operation].item())
        close(view, theirs)


def test_only_the_chosen_images_change() -> None:
    images = photos(4)
    chosen = torch.tensor([False, True, False, True])
    factors = torch.tensor(V.NEUTRAL).repeat(4, 1)
    factors[2, 0] = 0.5
    view = V.apply(images, whole(4, 32, grey=chosen, factors=factors))
    close(view[0], images[0])
    close(view[2], images[2] * 0.5)
    close(view[1::2], TV.rgb_to_grayscale(images[1::2], num_output_channels=3))


# The draws


def test_where_no_try_fits_the_largest_allowed_centre_crop_is_taken() -> None:
    draws = V.draw(Views(crop_scale=(1.0, 1.0)), 50, 10, 100, seeded())
    assert draws.boxes.tolist() == [[0, 43, 10, 13]] * 50


@pytest.mark.parametrize("certain", [0.0, 1.0])
def test_probabilities_of_zero_and_one_are_certain(certain: float) -> None:
    images = photos(64)
    settings = dataclasses.replace(PLAIN, crop_scale=(1.0, 1.0), flip=certain, grey=certain, blur=certain)
    draws = V.draw(settings, 64, 32, 32, seeded())
    draws = dataclasses.replace(draws, boxes=whole(64, 32).boxes)
    expected = images
    if certain:
        expected = V.blur(TV.rgb_to_grayscale(TV.horizontal_flip(images), 3), draws.sigma)
    close(V.apply(images, draws), expected)


# The views


def test_views_are_independent_and_repeatable() -> None:
    images = (photos(1).repeat(16, 1, 1, 1) * 255).to(torch.uint8)
    view1, view2 = V.random_views(images, Views(), seeded(3))
    assert view1.shape == view2.shape == (16, 3, 32, 32)
    assert view1.dtype == torch.float32
    flat = torch.cat([view1, view2]).flatten(1)
    distances = torch.cdist(flat, flat) + torch.eye(32) * 1e9
    assert distances.min() > 0.5  # 32 views of one image, no two alike
    for view, again in zip((view1, view2), V.random_views(images, Views(), seeded(3)), strict=True):
        assert torch.equal(view, again)
    assert not torch.equal(view1, V.random_views(images, Views(), seeded(4))[0])


def test_the_draws_do_not_depend_on_the_images() -> None:
    images = photos(8)
    others = images.clone()
    others[3] = 1 - others[3]
    before, after = (V.random_views(batch, Views(blur=0.5), seeded())[0] for batch in (images, others))
    changed = (before != after).flatten(1).any(dim=1)
    assert changed.tolist() == [index == 3 for index in range(8)]


def test_images_are_left_alone_and_views_stay_in_range() -> None:
    images = photos(32)
    kept = images.clone()
    view = V.apply(images, V.draw(Views(blur=0.5, brightness=0.8), 32, 32, 32, seeded()))
    assert torch.equal(images, kept)
    assert view.min() >= -1e-6
    assert view.max() <= 1 + 1e-6


def test_bytes_and_floats_give_the_same_view() -> None:
    images = (photos(8) * 255).to(torch.uint8)
    draws = V.draw(Views(), 8, 32, 32, seeded())
    close(V.apply(images, draws), V.apply(images.float() / 255, draws))


def test_nothing_waits_for_the_device() -> None:
    """On the meta device there are no values: whatever needed one from it would raise."""
    images = torch.empty(16, 3, 32, 32, dtype=torch.uint8, device="meta")
    views = V.random_views(images, Views(size=24, blur=0.5), seeded())
    assert [(view.shape, view.device.type) for view in views] == [((16, 3, 24, 24), "meta")] * 2
