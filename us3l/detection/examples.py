"""Scenes as tensors, in the form that torchvision's detectors take, and in batches, decoded by other processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision.ops import box_convert, clip_boxes_to_image

from us3l.data.decode import Damaged, decode
from us3l.data.loader import iterate
from us3l.detection.coco import decode_mask
from us3l.detection.scenes import Instance, Scene, SceneSet

Example = tuple[Tensor, dict[str, Tensor]]
"""An image (3 x H x W, uint8), and its boxes (N x 4: left, top, right, bottom), labels from 1 and, if wanted, masks."""
Key = tuple[int, bool]
"""The place of an image, and whether to mirror it."""
MOST_MASKED = 2**29  # objects of an image times its pixels
THINNEST = 0.01  # pixels; resizing could leave less than that without area


class Examples(Dataset[Example | str]):
    """Examples by their keys; for a damaged image, what is wrong with it."""

    def __init__(self, scene_set: SceneSet, masks: bool) -> None:
        self.scenes, self.masks = scene_set.scenes, masks

    def __getitem__(self, key: Key) -> Example | str:
        index, mirror = key
        scene = self.scenes[index]
        try:
            image, target = example(scene, self.masks)
        except Damaged as error:
            return f"{scene.image}: {error}"
        return mirrored(image, target) if mirror else (image, target)


def pixels(scene: Scene) -> np.ndarray:
    """H x W x 3, uint8, of the size that the annotation gives."""
    image = decode(scene.image, None)
    height, width, _ = image.shape
    if scene.size and scene.size != (width, height):
        raise Damaged(f"the image is {width}x{height}, but annotated as {scene.size[0]}x{scene.size[1]}")
    return image


def example(scene: Scene, masks: bool) -> Example:
    """All objects but crowds, their boxes cut off at the image's edges."""
    image = torch.from_numpy(pixels(scene).transpose(2, 0, 1).copy())
    height, width = image.shape[-2:]
    instances = [instance for instance in scene.instances if not instance.crowd]
    boxes = torch.tensor([instance.box for instance in instances], dtype=torch.float32).reshape(-1, 4)
    boxes = clip_boxes_to_image(box_convert(boxes, "xywh", "xyxy"), (height, width))
    labels = torch.tensor([instance.label + 1 for instance in instances], dtype=torch.int64)
    kept = ((boxes[:, 2:] - boxes[:, :2]) > THINNEST).all(1)
    target = {"boxes": boxes[kept], "labels": labels[kept]}
    if masks:
        target["masks"] = torch.from_numpy(draw_masks(instances, height, width))[kept]
    return image, target


def draw_masks(instances: Sequence[Instance], height: int, width: int) -> np.ndarray:
    """N x H x W, uint8."""
    if len(instances) * height * width > MOST_MASKED:
        raise Damaged(f"masks of {len(instances)} objects of {width}x{height} pixels are too many to hold")
    masks = np.zeros((len(instances), height, width), np.uint8)
    for mask, instance in zip(masks, instances, strict=True):
        mask[:] = decode_mask(instance.segmentation, height, width)
    return masks


def mirrored(image: Tensor, target: dict[str, Tensor]) -> Example:
    """Left becomes right."""
    left, top, right, bottom = target["boxes"].unbind(1)
    width = image.shape[-1]
    boxes = torch.stack([width - right, top, width - left, bottom], 1)
    masks = {"masks": target["masks"].flip(-1)} if "masks" in target else {}
    return image.flip(-1), target | {"boxes": boxes} | masks


def loader(examples: Examples, batches: Iterable[list[Key]], workers: int) -> Iterator[list[Example | str]]:
    """Return batches of examples, decoded by this many other processes."""
    loader = DataLoader(
        examples,
        batch_sampler=batches,
        collate_fn=list,
        num_workers=workers,
        generator=torch.Generator(),  # nothing is drawn from the global one
    )
    yield from iterate(loader)


def training_batches(count: int, batch: int, start: int, steps: int, seed: int) -> Iterator[list[Key]]:
    """Return the batches of the steps from `start` on: all images in a new order each epoch, half of them mirrored.

    A batch may reach from one epoch into the next, so that sets smaller than a batch are no exception.
    """

    def keys() -> Iterator[Key]:
        epoch, first = divmod(start * batch, count)
        while True:
            generator = np.random.default_rng((seed, epoch))
            order, mirror = generator.permutation(count), generator.random(count) < 0.5
            yield from zip(order[first:].tolist(), mirror[first:].tolist(), strict=True)
            epoch, first = epoch + 1, 0

    endless = keys()
    return (list(islice(endless, batch)) for _ in range(start, steps))
