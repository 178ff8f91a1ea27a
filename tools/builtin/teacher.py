"""The source network, and its feature maps of all images, each computed once and kept on disk."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
import torchvision
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from tools.builtin.images import Box, ImageList, as_batch, preprocessed, resized, sides

FEATURES, STRIDE = 1280, 32
BATCH = 32


class Teacher:
    """torchvision's MobileNetV2 with its ImageNet weights: features of images, and logits of features."""

    def __init__(self, weights: Path) -> None:
        network = torchvision.models.mobilenet_v2()
        network.load_state_dict(load_file(weights), strict=False)  # some files lack the norms' counters
        fused(network.eval().requires_grad_(False)).to(memory_format=torch.channels_last)
        self.backbone: nn.Module = network.features
        self.weight, self.bias = network.classifier[1].weight.detach(), network.classifier[1].bias.detach()

    @torch.inference_mode()
    def maps(self, images: Tensor) -> Tensor:
        """Return the last feature maps of preprocessed images (N x 1280 x h x w)."""
        return torch.cat([self.backbone(batch) for batch in images.split(BATCH)])

    def features(self, images: Tensor) -> Tensor:
        """Return the average pool's output of preprocessed images (N x 1280)."""
        return self.maps(images).mean(dim=(2, 3))

    def logits(self, features: Tensor) -> Tensor:
        """Return what its classifier makes of features, its own or those of another network."""
        return nn.functional.linear(features, self.weight, self.bias)


def fused(module: nn.Module) -> nn.Module:
    """Put the batch norms of a network in eval mode into the convolutions before them, in place."""
    names = list(module._modules)
    for first, second in itertools.pairwise(names):
        convolution, norm = module._modules[first], module._modules[second]
        if isinstance(convolution, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
            module._modules[first] = fuse_conv_bn_eval(convolution, norm)
            module._modules[second] = nn.Identity()
    for child in module.children():
        fused(child)
    return module


class Targets:
    """The teacher's feature maps of whole images, computed once and kept on disk; the target of any crop follows.

    The teacher sees each image once, at its full size. The target of a crop is the mean of the map over the part that
    the crop covers. So a step costs no pass of the teacher, however many different crops are drawn.

    Args:
        folder: Where maps are kept; what was kept of other images or settings is an error.
        size: The shorter side of what the teacher sees, in pixels.
        blurred_size: The same of images that are small themselves.
    """

    def __init__(
        self, folder: Path, images: ImageList, teacher: Teacher, size: int = 224, blurred_size: int = 128
    ) -> None:
        self.images, self.teacher = images, teacher
        sizes = np.where(images.blurred, blurred_size, size)
        self.shapes = [map_shape(*sides(one), int(side)) for one, side in zip(images.pixels, sizes, strict=True)]
        self.starts = np.concatenate([[0], np.cumsum([height * width for height, width in self.shapes])])
        settings = {"images": images.digest, "sizes": [size, blurred_size]}
        folder.mkdir(parents=True, exist_ok=True)
        description = folder / "targets.json"
        if not description.exists():
            description.write_text(json.dumps(settings))
        if json.loads(description.read_text()) != settings:
            raise ValueError(f"{folder} holds the targets of other images or settings: choose another folder")
        self.known = memory_map(folder / "known.bool", "bool", (len(images),))
        self.values = memory_map(folder / "maps.float16", "float16", (int(self.starts[-1]), FEATURES))

    def prepare(self, report: Callable[[int, int], None] | None = None) -> None:
        """Compute the maps that are missing, images of one shape together."""
        missing: dict[tuple[int, int], list[int]] = {}
        for place in np.flatnonzero(~self.known).tolist():
            missing.setdefault(self.shapes[place], []).append(place)
        for (height, width), rows in missing.items():
            for part in (rows[i : i + BATCH] for i in range(0, len(rows), BATCH)):
                whole = [resized(as_batch(self.images.pixels[row]), (STRIDE * height, STRIDE * width)) for row in part]
                maps = self.teacher.maps(preprocessed(torch.cat(whole)))
                for row, one in zip(part, maps, strict=True):
                    self.values[self.starts[row] : self.starts[row + 1]] = one.flatten(1).T.numpy()
                self.known[part] = True
                if report:
                    report(int(self.known.sum()), len(self.known))

    def of(self, rows: Sequence[int], boxes: Sequence[Box]) -> Tensor:
        """Return the target of each crop, given as an image and a box in it (N x 1280)."""
        targets = np.empty((len(rows), FEATURES), np.float32)
        for target, row, (top, left, height, width) in zip(targets, rows, boxes, strict=True):
            (cells_y, cells_x), (all_y, all_x) = self.shapes[row], sides(self.images.pixels[row])
            weights = np.outer(
                shares(cells_y, top / all_y, (top + height) / all_y),
                shares(cells_x, left / all_x, (left + width) / all_x),
            )
            cells = self.values[self.starts[row] : self.starts[row + 1]]
            np.matmul(weights.reshape(-1), cells.astype(np.float32), out=target)
        return torch.from_numpy(targets)


def map_shape(height: int, width: int, size: int) -> tuple[int, int]:
    """Return the height and width of the map of an image whose shorter side is made that many pixels."""
    scale = size / min(height, width) / STRIDE
    return max(1, round(height * scale)), max(1, round(width * scale))


def shares(cells: int, start: float, end: float) -> np.ndarray:
    """Return the share of each of some equal cells in the part of the line 0..1 from start to end; they add up to 1.

    >>> (100 * shares(4, 0.25, 0.625)).round().tolist()
    [0.0, 67.0, 33.0, 0.0]
    """
    edges = np.linspace(0, 1, cells + 1)
    covered = (np.minimum(edges[1:], end) - np.maximum(edges[:-1], start)).clip(min=0)
    return (covered / covered.sum()).astype(np.float32)


def memory_map(path: Path, kind: str, shape: tuple[int, ...]) -> np.memmap:
    """Return an array on disk, zeros at first."""
    if not path.exists():
        with open(path, "wb") as file:
            file.truncate(int(np.prod(shape)) * np.dtype(kind).itemsize)
    return np.memmap(path, dtype=kind, mode="r+", shape=shape)
