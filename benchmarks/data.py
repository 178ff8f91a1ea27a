"""Two random views of a batch, against torchvision's transforms image by image, on one thread."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torchvision import transforms as pil
from torchvision.transforms import v2

from benchmarks.timing import Row, best_seconds
from us3l.data.spec import MEAN, STD, Views
from us3l.data.views import two_views


def rows() -> Iterator[Row]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    images = torch.randint(0, 256, (128, 3, 32, 32), dtype=torch.uint8)
    pictures = [v2.functional.to_pil_image(image) for image in images]
    jitter = (0.4, 0.4, 0.4, 0.1)
    tensors = v2.Compose(
        [
            v2.RandomResizedCrop(32, scale=(0.2, 1.0), antialias=True),
            v2.RandomHorizontalFlip(),
            v2.RandomApply([v2.ColorJitter(*jitter)], p=0.8),
            v2.RandomGrayscale(0.2),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )
    pillow = pil.Compose(
        [
            pil.RandomResizedCrop(32, scale=(0.2, 1.0)),
            pil.RandomHorizontalFlip(),
            pil.RandomApply([pil.ColorJitter(*jitter)], p=0.8),
            pil.RandomGrayscale(0.2),
            pil.ToTensor(),
            pil.Normalize(MEAN, STD),
        ]
    )
    generator = torch.Generator().manual_seed(0)
    best = best_seconds(
        {
            "ours": lambda: two_views(images, Views(), generator),
            "v2": lambda: [(tensors(image), tensors(image)) for image in images],
            "PIL": lambda: [(pillow(picture), pillow(picture)) for picture in pictures],
        },
        turns=20,
    )
    torch.set_num_threads(threads)
    note = f"{len(images) / best['ours']:.0f} images/s"
    for rival in ("v2", "PIL"):
        what = f"two views of an image, one thread: times as fast as torchvision's {rival}"
        yield Row(what, best["ours"] * 1e3, best[rival] * 1e3, "ms for 128", 10, "at least", note)
