import io
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from tests.shapes import write_coco
from us3l.detection.coco import encode_mask
from us3l.detection.inference import Findings, score
from us3l.detection.scenes import Instance, load
from us3l.reporting.detection_tables import detections_figure, detections_table


def rectangle(box):
    left, top, width, height = box
    mask = np.zeros((48, 64), bool)
    mask[top : top + height, left : left + width] = True
    return encode_mask(mask)


@pytest.fixture
def findings(tmp_path):
    """Blocks are found, with masks; of the discs none is."""
    _, test = load(write_coco(tmp_path / "coco", train2017=1, val2017=3))
    found = [
        {
            "image_id": scene.id,
            "category_id": 3,
            "bbox": list(one.box),
            "score": 0.9,
            "segmentation": rectangle(one.box),
        }
        for scene in test.scenes
        for one in scene.instances
        if one.label == 0
    ]
    return Findings(found, test, score(test, found, "boxes"), score(test, found, "masks"))


def rows(table):
    written = io.StringIO()
    console = Console(width=200, file=written)
    console.print(table)
    lines = [line.split() for line in written.getvalue().splitlines()]
    return {line[0]: line[1:] for line in lines if line}


def test_the_table_has_each_class(findings):
    found = rows(detections_table(findings))
    assert found["all"][:4] == ["6", "50.0", "50.0", "50.0"]
    assert found["block"][:4] == ["3", "100.0", "100.0", "100.0"]
    assert found["disc"] == ["3", *["0.0"] * 6]


def test_a_row_for_the_untrained_detector(findings):
    nothing = replace(findings, detections=[], boxes=score(findings.scenes, []), masks=None)
    found = rows(detections_table(replace(findings, masks=None), nothing))
    assert found["all,"] == "untrained 6 0.0 0.0 0.0".split()
    assert found["block"] == "3 100.0 100.0 100.0".split()


def test_classes_without_objects_are_left_out(findings):
    scenes = replace(findings.scenes, classes=("block", "disc", "cone"), category_ids=(3, 7, 9))
    table = detections_table(Findings(findings.detections, scenes, score(scenes, findings.detections), None))
    assert "cone" not in rows(table)


def test_crowds_and_difficult_objects_do_not_count(findings):
    extra = (Instance(0, (1, 1, 5, 5), 25, crowd=True), Instance(1, (1, 1, 5, 5), 25, difficult=True))
    first = replace(findings.scenes.scenes[0], instances=(*findings.scenes.scenes[0].instances, *extra))
    scenes = replace(findings.scenes, scenes=(first, *findings.scenes.scenes[1:]))
    assert rows(detections_table(replace(findings, scenes=scenes, masks=None)))["all"][0] == "6"


def test_the_picture_shows_truth_and_detections(findings, tmp_path):
    def picture(some):
        detections_figure(some, tmp_path / "new" / "a.png", "shapes: made")
        with Image.open(tmp_path / "new" / "a.png") as image:
            return np.asarray(image.convert("RGB")).astype(int)

    whole = picture(findings)
    assert np.array_equal(picture(findings), whole)
    doubtful = [one | {"score": 0.4} for one in findings.detections]
    without = picture(replace(findings, detections=doubtful))
    assert whole.shape == without.shape
    changed = np.argwhere((whole != without).any(2))
    assert len(changed)
    assert changed[:, 1].min() > whole.shape[1] / 2 - 5  # only the right half has the detections


def test_scenes_without_objects_can_be_drawn(findings, tmp_path):
    empty = tuple(replace(scene, instances=()) for scene in findings.scenes.scenes)
    detections_figure(
        replace(findings, detections=[], scenes=replace(findings.scenes, scenes=empty)), tmp_path / "a.png", ""
    )
    assert (tmp_path / "a.png").exists()
