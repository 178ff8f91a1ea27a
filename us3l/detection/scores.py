"""Average precision as COCO defines it, by pycocotools."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from typing import Any, Literal

import numpy as np

from us3l.detection.masks import coco_masks
from us3l.detection.scenes import SceneSet
from us3l.run.detections import AveragePrecision, Scores

Detection = dict[str, Any]
"""As COCO's files of results have it: image_id, category_id, bbox, score and, for masks, segmentation."""
ObjectKind = Literal["boxes", "masks"]
IOU_TYPES = {"boxes": "bbox", "masks": "segm"}


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
