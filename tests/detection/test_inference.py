"""Our figures against COCO's own evaluation of the annotation file."""

import io
import json
from contextlib import redirect_stdout
from dataclasses import replace

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from tests.shapes import write_coco, write_voc
from us3l.detection.coco import decode_mask, encode_mask
from us3l.detection.inference import score
from us3l.detection.scenes import Instance, Scene, SceneSet, load
from us3l.run.detections import AveragePrecision


def reference(path, detections, kind):
    """AP, AP50 and AP75 by pycocotools alone: the annotation file, the detections, and the summary it prints."""
    with redirect_stdout(io.StringIO()):
        truth = COCO(str(path))
        evaluation = COCOeval(truth, truth.loadRes([dict(one) for one in detections]), kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return [100 * value for value in evaluation.stats[:3]]


def blurred_truth(scene_set, seed=0):
    """Detections that are partly right: moved, doubled, of wrong classes, some missing, and some of nothing."""
    random = np.random.default_rng(seed)
    found = []
    for scene in scene_set.scenes:
        for one in scene.instances:
            for _ in range(random.integers(0, 3)):
                label = one.label if random.random() < 0.8 else random.integers(len(scene_set.classes))
                box = np.array(one.box) * random.normal(1, 0.08, 4)
                mask = decode_mask(one.segmentation, scene.size[1], scene.size[0])
                found.append((scene, label, box, np.roll(mask, random.integers(-4, 5, 2), (0, 1))))
        found.append((scene, 0, np.array([1.0, 2, 30, 20]), np.eye(scene.size[1], scene.size[0]) > 0))
    return [
        {
            "image_id": scene.id,
            "category_id": scene_set.category_ids[label],
            "bbox": box.tolist(),
            "score": float(random.random()),
            "segmentation": encode_mask(mask),
        }
        for scene, label, box, mask in found
    ]


def check_against_the_reference(scene_set, path):
    detections = blurred_truth(scene_set)
    for kind, name in (("boxes", "bbox"), ("masks", "segm")):
        overall = score(scene_set, detections, kind).overall
        assert [overall.ap, overall.ap50, overall.ap75] == pytest.approx(reference(path, detections, name), abs=1e-12)
        assert 0 < overall.ap < overall.ap50 < 100


def test_equals_the_reference_on_made_scenes_with_crowds(tmp_path):
    path = write_coco(tmp_path, train2017=1, val2017=6) / "annotations" / "instances_val2017.json"
    whole = json.loads(path.read_text())
    for one in whole["annotations"][::4]:
        one["iscrowd"] = 1
        counts = [10 * 48, 30 * 48, 24 * 48]
        one["segmentation"], one["bbox"] = {"size": [48, 64], "counts": counts}, [10, 0, 30, 48]
    whole["images"].append(whole["images"][0] | {"id": 5})  # without objects
    path.write_text(json.dumps(whole))
    _, test = load(tmp_path)
    assert len(test) == 7
    check_against_the_reference(test, path)


def test_equals_the_reference_on_real_scenes(shared_data):
    _, test = load(shared_data / "coco")
    check_against_the_reference(test, shared_data / "coco" / "annotations" / "instances_val2017.json")


def perfect(scene_set):
    return [
        {
            "image_id": scene.id,
            "category_id": scene_set.category_ids[one.label],
            "bbox": list(one.box),
            "score": 0.9,
        }
        for scene in scene_set.scenes
        for one in scene.instances
    ]


def test_perfect_and_empty_detections(tmp_path):
    _, test = load(write_voc(tmp_path, trainval=2, test=3))
    assert score(test, perfect(test)).overall == AveragePrecision(100, 100, 100)
    nothing = score(test, [])
    assert nothing.overall == nothing.classes["disc"] == AveragePrecision(0, 0, 0)


def test_each_class(tmp_path):
    _, test = load(write_voc(tmp_path, trainval=2, test=3))
    blocks = [one for one in perfect(test) if one["category_id"] == 1]
    scores = score(replace(test, classes=(*test.classes, "unseen"), category_ids=(1, 2, 9)), blocks)
    assert scores.classes["block"].ap == 100
    assert scores.classes["disc"].ap == 0
    assert scores.classes["unseen"] == AveragePrecision(None, None, None)
    assert scores.overall.ap == 50


def test_detections_in_an_image_without_objects_are_wrong(tmp_path):
    _, test = load(write_voc(tmp_path, trainval=2, test=2))
    detections = [one | {"score": 0.5} for one in perfect(test)]
    empty = replace(test, scenes=(*test.scenes, Scene(99, test.scenes[0].image, (64, 48), ())))
    false = [{"image_id": 99, "category_id": n, "bbox": [1, 1, 9, 9], "score": 0.8} for n in (1, 2)]
    assert score(empty, detections).overall.ap == 100
    assert score(empty, detections + false).overall.ap < 70


@pytest.mark.parametrize("difficult", [True, False])
def test_difficult_objects_are_neither_right_nor_wrong(difficult, tmp_path):
    """One easy object; the difficult one is found exactly, and with a low overlap that a crowd would forgive."""
    easy, hard = Instance(0, (0, 0, 10, 10), 100), Instance(0, (30, 0, 20, 20), 400, difficult=difficult)
    scenes = SceneSet("made", "voc", ("a",), (1,), (Scene(1, tmp_path, None, (easy, hard)),))
    boxes = {(30, 0, 20, 20): 0.9, (0, 0, 10, 10): 0.8}
    found = [{"image_id": 1, "category_id": 1, "bbox": list(box), "score": s} for box, s in boxes.items()]
    assert score(scenes, found).overall.ap == pytest.approx(100)  # right or ignored
    assert score(scenes, found[1:]).overall.ap50 == pytest.approx(100 if difficult else 100 * 51 / 101)
    inside = {"image_id": 1, "category_id": 1, "bbox": [30, 0, 5, 5], "score": 0.95}
    assert score(scenes, [inside, *found]).overall.ap < 90
