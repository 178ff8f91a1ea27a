"""Two random views of a batch against torchvision's transforms image by image; and reading photographs. One thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torchvision import transforms as pil
from torchvision.transforms import v2

from benchmarks.timing import Row, best_seconds
from us3l.data.augment import blur_radius, random_views
from us3l.data.crops import RandomCrops, Squares
from us3l.data.sources import find
from us3l.data.view_settings import MEAN, STD, Views
from us3l.system.devices import keep_freed_memory
from us3l.system.seeds import seed_from

JITTER = (0.4, 0.4, 0.4, 0.1)
PHOTOS = Path("../shared/data/coco/train2017")


def rows() -> Iterator[Row]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield from small_images()
    if PHOTOS.is_dir():
        yield from photographs()
    torch.set_num_threads(threads)


def small_images() -> Iterator[Row]:
    images = torch.randint(0, 256, (128, 3, 32, 32), dtype=torch.uint8)
    pictures = [v2.functional.to_pil_image(image) for image in images]
    tensors = v2.Compose(
        [
            v2.RandomResizedCrop(32, scale=(0.2, 1.0), antialias=True),
            v2.RandomHorizontalFlip(),
            v2.RandomApply([v2.ColorJitter(*JITTER)], p=0.8),
            v2.RandomGrayscale(0.2),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )
    pillow = pil.Compose(
        [
            pil.RandomResizedCrop(32, scale=(0.2, 1.0)),
            pil.RandomHorizontalFlip(),
            pil.RandomApply([pil.ColorJitter(*JITTER)], p=0.8),
            pil.RandomGrayscale(0.2),
            pil.ToTensor(),
            pil.Normalize(MEAN, STD),
        ]
    )
    generator = torch.Generator().manual_seed(0)
    best = best_seconds(
        {
            "ours": lambda: random_views(images, Views(), generator),
            "v2": lambda: [(tensors(image), tensors(image)) for image in images],
            "PIL": lambda: [(pillow(picture), pillow(picture)) for picture in pictures],
        },
        turns=20,
    )
    note = f"{len(images) / best['ours']:.0f} images/s"
    for rival in ("v2", "PIL"):
        what = f"two views of an image, one thread: times as fast as torchvision's {rival}"
        yield Row(what, best["ours"] * 1e3, best[rival] * 1e3, "ms for 128", 10, "at least", note)


def photographs() -> Iterator[Row]:
    """What a worker does per image, in this process, in CPU time, from files in the system's cache.

    The rivals do all that they do on the CPU; ours leaves colours, grey and blur to the device, which does them by the
    batch. Two views of 224 pixels with the recipe for ImageNet's augmentation.
    """
    keep_freed_memory()  # as workers do; the rivals gain by it too
    paths = sorted(PHOTOS.glob("*.jpg"))[::2]
    files, everything = find(paths, "all"), list(range(len(paths)))
    views = Views(size=224, blur=0.5)
    crops, squares = RandomCrops(files, views, 0, 2), Squares(files, 256)
    pillow, tensors = pillow_view(views), tensor_view(views)

    def by_pillow() -> None:
        for path in paths:
            image = Image.open(path).convert("RGB")
            pillow(image), pillow(image)

    def by_tensors() -> None:
        for number, path in enumerate(paths):
            upright = ImageOps.exif_transpose(Image.open(path)).convert("RGB")
            image = torch.from_numpy(np.asarray(upright).transpose(2, 0, 1).copy())
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(seed_from(0, 0, number))
                tensors(image), tensors(image)

    best = best_seconds(
        {
            "views": lambda: crops[0, everything],
            "squares": lambda: squares[0, everything],
            "decoding": lambda: [np.asarray(Image.open(path).convert("RGB")) for path in paths],
            "PIL": by_pillow,
            "before": by_tensors,
        },
        turns=5,
        clock=time.process_time,
    )
    speed = {name: len(paths) / seconds for name, seconds in best.items()}
    note = ", ".join(f"{name} {value:.0f} images/s" for name, value in speed.items())
    milliseconds = {name: 1e3 * seconds / len(paths) for name, seconds in best.items()}
    for rival, what, target in (
        ("PIL", "torchvision's PIL pipeline", 6),
        ("before", "transforms per image, as before", 7),
    ):
        what = f"two views of a photograph of 640 x 480, a worker: times as fast as {what}"
        yield Row(what, milliseconds["views"], milliseconds[rival], "ms per image", target, "at least", note)
    what = "reading photographs for evaluation: share of bare decoding's speed"
    yield Row(what, milliseconds["squares"], milliseconds["decoding"], "ms per image", 0.8, "at least")


def pillow_view(views: Views) -> Callable[[Image.Image], torch.Tensor]:
    side = 2 * blur_radius(views.size) + 1
    return pil.Compose(
        [
            pil.RandomResizedCrop(views.size, scale=views.crop_scale),
            pil.RandomHorizontalFlip(),
            pil.RandomApply([pil.ColorJitter(*JITTER)], p=0.8),
            pil.RandomGrayscale(0.2),
            pil.RandomApply([pil.GaussianBlur(side, (0.1, 2.0))], p=views.blur),
            pil.ToTensor(),
            pil.Normalize(MEAN, STD),
        ]
    )


def tensor_view(views: Views) -> Callable[[torch.Tensor], torch.Tensor]:
    """What workers did for each image until November 2026."""
    side = 2 * blur_radius(views.size) + 1
    return v2.Compose(
        [
            v2.RandomResizedCrop(views.size, scale=views.crop_scale, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.RandomApply([v2.ColorJitter(*JITTER)], 0.8),
            v2.RandomGrayscale(0.2),
            v2.RandomApply([v2.GaussianBlur(side, (0.1, 2.0))], views.blur),
        ]
    )
