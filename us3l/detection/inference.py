"""Detections in scenes, and their average precision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torchvision.models.detection import FasterRCNN
from torchvision.ops import box_convert

from us3l.detection.batches import loader
from us3l.detection.examples import Examples
from us3l.detection.masks import encode_mask
from us3l.detection.scenes import Scene, SceneSet
from us3l.detection.scores import Detection, score
from us3l.run.detections import Scores
from us3l.system.errors import UserError

INSIDE = 0.5  # probability from which on a pixel belongs to a mask


@dataclass(frozen=True)
class Findings:
    """What was found, and its scores."""

    detections: list[Detection]
    scenes: SceneSet
    """Those that were looked at: all whose image is not damaged."""
    boxes: Scores
    masks: Scores | None


def evaluate_detector(
    detector: FasterRCNN,
    scene_set: SceneSet,
    batch: int = 1,
    workers: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Findings:
    """`progress` is called with the number of images after each batch."""
    detections, scenes = find_objects(detector, scene_set, batch, workers, progress)
    comparable = detector.roi_heads.has_mask() and scenes.has_masks
    masks = score(scenes, detections, "masks") if comparable else None
    return Findings(detections, scenes, score(scenes, detections, "boxes"), masks)


@torch.no_grad()
def find_objects(
    detector: FasterRCNN,
    scene_set: SceneSet,
    batch: int = 1,
    workers: int = 0,
    progress: Callable[[int], None] | None = None,
) -> tuple[list[Detection], SceneSet]:
    """Detections in COCO's form, and the scenes without those whose image is damaged."""
    detector.eval()
    device = next(detector.parameters()).device
    keys = [(index, False) for index in range(len(scene_set))]
    batches = [keys[start : start + batch] for start in range(0, len(keys), batch)]
    detections: list[Detection] = []
    usable: list[Scene] = []
    skipped = list(scene_set.skipped)
    for some, examples in zip(batches, loader(Examples(scene_set, masks=False), batches, workers), strict=True):
        images = []
        for (index, _), example in zip(some, examples, strict=True):
            if isinstance(example, str):
                skipped.append(example)
            else:
                usable.append(scene_set.scenes[index])
                images.append(example[0].to(device) / 255)
        if images:
            for scene, output in zip(usable[-len(images) :], detector(images), strict=True):
                detections += records(scene, output, scene_set.category_ids)
        if progress:
            progress(len(some))
    if not usable:
        raise UserError(f"{scene_set.name}: none of the test images can be used; the last is {skipped[-1]}")
    return detections, replace(scene_set, scenes=tuple(usable), skipped=tuple(skipped))


def records(scene: Scene, output: dict[str, Tensor], category_ids: tuple[int, ...]) -> list[Detection]:
    """A detector's output for one image in COCO's form."""
    boxes = box_convert(output["boxes"], "xyxy", "xywh").tolist()
    found: list[Detection] = [
        {"image_id": scene.id, "category_id": category_ids[label - 1], "bbox": box, "score": value}
        for box, label, value in zip(boxes, output["labels"].tolist(), output["scores"].tolist(), strict=True)
    ]
    if "masks" in output:
        for one, mask in zip(found, (output["masks"][:, 0] > INSIDE).cpu().numpy(), strict=True):
            one["segmentation"] = encode_mask(mask)
    return found
