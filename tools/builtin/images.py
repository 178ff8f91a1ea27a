"""The images that the built-in network learns from, those that are held out of them, and crops of them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
Box = tuple[int, int, int, int]
"""Of a crop: top, left, height, width, in pixels of the image."""
SIDE = 224
"""Larger images are kept with a shorter side of this many pixels."""
AREA, RATIO = (0.35, 1.0), (3 / 4, 4 / 3)
"""Of crops: the share of the image, and width over height."""


@dataclass(frozen=True)
class Source:
    """A folder of images, none of which is a test or validation image of anything."""

    folder: str
    held_out: int = 0
    """One of this many images per class is kept for looks and is never learned from; 0: none."""
    listed: str = ""
    """A text file of names, if only these may be used."""
    blurred: bool = False
    """Whether its images are too small to show a teacher at its full size."""
    labelled: bool = False
    """Whether its folders are classes, which only held-out figures use."""


SOURCES = (
    Source("photos/train", held_out=6, labelled=True),
    Source("pets/train", held_out=8, labelled=True),
    Source("corpus/imagenet_samples", held_out=5),
    Source("corpus/tiny_imagenet", blurred=True),
    Source("coco/train2017"),
    Source("voc_bccd/JPEGImages", listed="voc_bccd/ImageSets/Main/train.txt"),
)


@dataclass
class ImageList:
    """Images in memory (uint8, H x W x 3), with what is known of each."""

    names: list[str]
    pixels: list[np.ndarray]
    blurred: np.ndarray
    labels: np.ndarray
    """The number of the class within its source; -1: there are none."""

    def __len__(self) -> int:
        return len(self.names)

    @property
    def digest(self) -> str:
        """The SHA-256 of the names, in order."""
        return hashlib.sha256("\n".join(self.names).encode()).hexdigest()


def find_files(data: Path, source: Source) -> list[tuple[Path, bool, int]]:
    """Return each file of a source, whether it is held out, and the number of its class (-1: none)."""
    folder = data / source.folder
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".png"))
    if source.listed:
        allowed = set((data / source.listed).read_text().split())
        files = [path for path in files if path.stem in allowed]
    classes = sorted({path.parent for path in files})
    rows = []
    for number, parent in enumerate(classes):
        for place, path in enumerate(path for path in files if path.parent == parent):
            held_out = bool(source.held_out) and place % source.held_out == source.held_out - 1
            rows.append((path, held_out, number if source.labelled else -1))
    return rows


def read_images(data: Path, sources: Sequence[Source] = SOURCES, held_out: bool = False) -> ImageList:
    """Read the images to learn from, or those held out. A source that is not there is left out."""
    names, pixels, blurred, labels = [], [], [], []
    for source in sources:
        if not (data / source.folder).is_dir():
            continue
        for path, kept_apart, label in find_files(data, source):
            if kept_apart == held_out:
                names.append(path.relative_to(data).as_posix())
                pixels.append(read_image(path))
                blurred.append(source.blurred)
                labels.append(label)
    return ImageList(names, pixels, np.array(blurred, bool), np.array(labels, int))


def read_image(path: Path) -> np.ndarray:
    """Return the pixels of a file, made smaller if its shorter side is longer than `SIDE`."""
    with Image.open(path) as file:
        image = file.convert("RGB")
    scale = SIDE / min(image.size)
    if scale < 1:
        image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BILINEAR)
    return np.array(image)


def crop_box(height: int, width: int, draw: np.random.Generator) -> Box:
    """Draw a random crop."""
    for _ in range(10):
        area = height * width * draw.uniform(*AREA)
        ratio = np.exp(draw.uniform(*np.log(RATIO)))
        w, h = round(float(np.sqrt(area * ratio))), round(float(np.sqrt(area / ratio)))
        if 0 < w <= width and 0 < h <= height:
            return int(draw.integers(height - h + 1)), int(draw.integers(width - w + 1)), h, w
    return centre_box(height, width, 1.0)


def centre_box(height: int, width: int, share: float) -> Box:
    """Return the central square whose side is that share of the shorter side."""
    side = max(1, round(min(height, width) * share))
    return (height - side) // 2, (width - side) // 2, side, side


def sides(pixels: np.ndarray) -> tuple[int, int]:
    """Return the height and width of an image."""
    return pixels.shape[0], pixels.shape[1]


def draw_boxes(images: ImageList, rows: Sequence[int], draw: np.random.Generator) -> list[Box]:
    """Draw a crop of each of these images."""
    return [crop_box(*sides(images.pixels[row]), draw) for row in rows]


def cut(images: ImageList, rows: Sequence[int], boxes: Sequence[Box], size: int) -> Tensor:
    """Return a crop of each of these images, uint8 (N x 3 x size x size)."""
    crops = []
    for row, (top, left, height, width) in zip(rows, boxes, strict=True):
        part = images.pixels[row][top : top + height, left : left + width]
        crops.append(resized(as_batch(part), (size, size)))
    return torch.cat(crops)


def centres(images: ImageList, rows: Sequence[int], size: int) -> Tensor:
    """Return what a network sees of these images in use, uint8: the central square of 7/8 of the shorter side."""
    return cut(images, rows, [centre_box(*sides(images.pixels[row]), 7 / 8) for row in rows], size)


def as_batch(pixels: np.ndarray) -> Tensor:
    """Return one image (H x W x 3) as a batch (1 x 3 x H x W)."""
    return torch.from_numpy(np.ascontiguousarray(pixels)).permute(2, 0, 1)[None]


def resized(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Return a batch of uint8 images of that height and width."""
    if images.shape[-2:] == size:
        return images
    return F.interpolate(images, size=size, mode="bilinear", antialias=True)


def preprocessed(images: Tensor, flipped: Tensor | None = None) -> Tensor:
    """Return uint8 images as a network takes them; some of them mirrored."""
    x = images.float().div_(255)
    x.sub_(torch.tensor(MEAN).view(3, 1, 1)).div_(torch.tensor(STD).view(3, 1, 1))
    if flipped is not None:
        x = torch.where(flipped.view(-1, 1, 1, 1), x.flip(3), x)
    return x.contiguous(memory_format=torch.channels_last)
