"""Views are distributed as torchvision's in every path: 2,000 draws of each against as many of torchvision's.

That each operation does the same with what was drawn, `test_augment.py` and `test_crops.py` show.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import transforms

from us3l.data import augment as views_module
from us3l.data.augment import DRAWN, Draws, draw, drawn
from us3l.data.catalogue import of_pixels
from us3l.data.crops import RandomCrops, Read
from us3l.data.streamed import ImageFiles
from us3l.data.view_settings import Views

COUNT = 2000
HEIGHT, WIDTH = 48, 64
VIEWS = Views(size=4, blur=0.5, solarise=0.2)
SHARES = {"flipped": 0.5, "jittered": 0.8, "grey": 0.2, "blurred": 0.5, "solarised": 0.2}
Numbers = dict[str, np.ndarray]


def streamed(views: Views) -> Draws:
    pixels = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    files = ImageFiles("", of_pixels(np.broadcast_to(pixels, (COUNT, *pixels.shape))), np.arange(COUNT))
    read = RandomCrops(files, views, seed=3, count=1)[0, list(range(COUNT))]
    assert isinstance(read, Read)
    uniform, boxes = torch.from_numpy(read.uniform)[:, 0], torch.from_numpy(read.boxes)[:, 0]
    return drawn(views, uniform[:, :DRAWN], uniform[:, DRAWN], boxes)


def in_memory(views: Views) -> Draws:
    return draw(views, COUNT, HEIGHT, WIDTH, torch.Generator().manual_seed(2))


def numbers(draws: Draws) -> Numbers:
    jittered = (draws.factors != torch.tensor(views_module.NEUTRAL)).any(dim=1)
    return {
        **described(draws.boxes.double().numpy(), draws.factors[jittered].numpy(), draws.order.numpy()),
        "sigma": draws.sigma[draws.sigma > 0].numpy(),
        "flipped": draws.flip.numpy(),
        "jittered": jittered.numpy(),
        "grey": draws.grey.numpy(),
        "blurred": (draws.sigma > 0).numpy(),
        "solarised": draws.solarise.numpy(),
    }


def described(boxes: np.ndarray, factors: np.ndarray, order: np.ndarray) -> Numbers:
    top, left, height, width = boxes.T
    found = {
        "row": top + height / 2,
        "column": left + width / 2,
        "aspect": np.log(width / height),
        "area": width * height,
        "height": height,
    }
    names = ("brightness", "contrast", "saturation", "hue")
    found |= dict(zip(names, factors.T, strict=True))
    return found | {f"place of {name}": order.argsort(axis=1)[:, number] for number, name in enumerate(names)}


@pytest.fixture(scope="module")
def theirs() -> Numbers:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        image = torch.zeros(3, HEIGHT, WIDTH)
        crop, jitter, blur = transforms.RandomResizedCrop, transforms.ColorJitter, transforms.GaussianBlur
        boxes = np.array([crop.get_params(image, (0.2, 1.0), (3 / 4, 4 / 3)) for _ in range(COUNT)], float)
        limits = [(0.6, 1.4)] * 3 + [(-0.1, 0.1)]
        drawn = [jitter.get_params(*limits) for _ in range(COUNT)]
        sigma = np.array([blur.get_params(0.1, 2.0) for _ in range(COUNT)])
    order = np.array([one[0].tolist() for one in drawn])
    return described(boxes, np.array([one[1:] for one in drawn]), order) | {"sigma": sigma}


def differences(ours: Numbers, theirs: Numbers) -> list[str]:
    """What is not alike. By chance means differ by 3 % of the deviation, deviations by 2 %, and shares by 0.01."""
    found = [f"{name}: {ours[name].mean():.3f}" for name, p in SHARES.items() if abs(ours[name].mean() - p) > 0.018]
    for name, other in theirs.items():
        mine = ours[name]
        if abs(mine.mean() - other.mean()) > 0.1 * other.std():
            found.append(f"{name}: mean {mine.mean():.3f}, not {other.mean():.3f}")
        if abs(math.log(mine.std() / other.std())) > 0.05:
            found.append(f"{name}: deviation {mine.std():.3f}, not {other.std():.3f}")
    return found


@pytest.mark.parametrize("path", [streamed, in_memory])
def test_draws_are_distributed_as_torchvisions(path: Callable[[Views], Draws], theirs: Numbers) -> None:
    assert not differences(numbers(path(VIEWS)), theirs)


@pytest.mark.parametrize(
    "change",
    [
        {"crop_scale": (0.28, 1.0)},
        {"crop_scale": (0.2, 0.92)},
        {"LOG_ASPECT": (0.9 * math.log(3 / 4), 0.9 * math.log(4 / 3))},
        {"flip": 0.55},
        {"jitter": 0.72},
        {"brightness": 0.44},
        {"contrast": 0.36},
        {"saturation": 0.44},
        {"hue": 0.09},
        {"grey": 0.24},  # a tenth of so small a share would take five times the draws
        {"blur": 0.45},
        {"BLUR_SIGMA": (0.1, 1.8)},
        {"solarise": 0.24},
    ],
    ids=str,
)
def test_a_tenth_makes_a_difference(change: dict[str, Any], theirs: Numbers, monkeypatch: pytest.MonkeyPatch) -> None:
    """That the test above sees what it is for: the comparison is the same for both paths."""
    constants = {name: value for name, value in change.items() if name.isupper()}
    for name, value in constants.items():
        monkeypatch.setattr(views_module, name, value)
    assert differences(numbers(in_memory(VIEWS if constants else replace(VIEWS, **change))), theirs)
