"""Detections in scenes, and their average precision as COCO defines it, by pycocotools."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torchvision.models.detection import FasterRCNN
from torchvision.ops import box_convert

from us3l.detection.coco import coco_masks, encode_mask
from us3l.detection.examples import Examples, loader
from us3l.detection.scenes import Scene, SceneSet
from us3l.run.detections import AveragePrecision, Scores
from us3l.system.errors import UserError

Detection = dict[str, Any]
"""As COCO's files of results have it: image_id, category_id, bbox, score and, for masks, segmentation."""
ObjectKind = Literal["boxes", "masks"]
IOU_TYPES = {"boxes": "bbox", "masks": "segm"}
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


def score(scene_set: SceneSet, detections: list[Detection], kind: ObjectKind = "boxes") -> Scores:
    """Compare detections with the truth. Crowds and difficult objects are neither right when found nor wrong if not."""
    coco_masks()  # says what to install, if it must
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    class Evaluation(COCOeval):
        """Also ignores VOC's difficult objects; pycocotools would only ignore crowds, whose overlap differs."""

        def _prepare(self) -> None:
            super()._prepare()
            for truths in self._gts.values():
                for truth in truths:
                    truth["ignore"] = truth["ignore"] or truth["difficult"]

    def indexed(annotations: list[dict[str, Any]]) -> COCO:
        coco = COCO()
        coco.dataset = description(scene_set) | {"annotations": annotations}
        coco.createIndex()
        return coco

    with redirect_stdout(io.StringIO()):
        truth = indexed(truths_of(scene_set))
        found = truth.loadRes([dict(one) for one in detections]) if detections else indexed([])
        evaluation = Evaluation(truth, found, IOU_TYPES[kind])
        evaluation.evaluate()
        evaluation.accumulate()
    # Overlap x recall x class x size of objects (all of them first) x detections per image (the most last).
    precision = evaluation.eval["precision"][:, :, :, 0, -1]
    each = {name: summary(precision[:, :, label]) for label, name in enumerate(scene_set.classes)}
    return Scores(summary(precision), each)


def summary(precision: np.ndarray) -> AveragePrecision:
    def mean(part: np.ndarray) -> float | None:
        known = part[part > -1]  # -1 where there is no object
        return 100 * float(known.mean()) if known.size else None

    return AveragePrecision(mean(precision), mean(precision[0]), mean(precision[5]))


def description(scene_set: SceneSet) -> dict[str, Any]:
    """Images and categories in COCO's form."""
    sizes = {scene.id: scene.size or (0, 0) for scene in scene_set.scenes}
    categories = zip(scene_set.category_ids, scene_set.classes, strict=True)
    return {
        "info": {},
        "images": [{"id": number, "width": width, "height": height} for number, (width, height) in sizes.items()],
        "categories": [{"id": number, "name": name} for number, name in categories],
    }


def truths_of(scene_set: SceneSet) -> list[dict[str, Any]]:
    """The truth in COCO's form."""
    objects = [(scene.id, instance) for scene in scene_set.scenes for instance in scene.instances]
    return [
        {
            "id": number,
            "image_id": image,
            "category_id": scene_set.category_ids[instance.label],
            "bbox": list(instance.box),
            "area": instance.area,
            "segmentation": instance.segmentation,
            "iscrowd": int(instance.crowd),
            "difficult": instance.difficult,
        }
        for number, (image, instance) in enumerate(objects, start=1)
    ]
