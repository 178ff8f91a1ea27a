from dataclasses import replace

import pytest
import torch

import us3l
from us3l.run import Run
from us3l.run.detections import (
    DETECTION_RECORDS,
    AveragePrecision,
    DetectionRecord,
    Scores,
    detection_stem,
    ended,
    find_detection,
    write_boxes,
    write_detection,
)
from us3l.system.errors import UserError

SCORES = Scores(AveragePrecision(10.0, 20.0, None), {"cat": AveragePrecision(10.0, 20.0, None)})
RECORD = DetectionRecord("/a/boxes", "coco", 0.5, {"steps": 2}, 8, 4, [1.0, 0.5], SCORES, untrained={"boxes": SCORES})


@pytest.fixture
def run(tmp_path):
    us3l.create("resnet18", stem="cifar", base=8).save(tmp_path / "run" / "model")
    return Run(tmp_path / "run")


def save(run, record):
    stem = detection_stem(run.detection_folder, "boxes", record.data, record.width)
    write_detection(run, stem, record)
    write_boxes(stem, [])
    return ended(stem, ".json")


def test_it_comes_back_whatever_its_name(run):
    path = save(run, RECORD)
    assert path.name == "boxes-0.5x.json"
    found = DETECTION_RECORDS.load(path)
    assert replace(found, name="", source=None, weights=None, us3l=None, torch=None, date=None) == RECORD
    assert (found.source, found.weights) == ("/a/boxes", run.weights)
    other = save(run, replace(RECORD, data="/b/boxes", boxes=replace(SCORES, overall=AveragePrecision(1.0, 2.0, 3.0))))
    assert other.name.startswith("boxes-")
    assert other != path
    assert find_detection(run, "/a/boxes", 0.5).boxes.overall.ap == 10.0
    assert find_detection(run, "/b/boxes", 0.5).boxes.overall.ap == 1.0
    assert find_detection(run, "/b/boxes", 1.0) is None
    assert save(run, RECORD) == path


def test_other_weights_are_refused(run):
    save(run, RECORD)
    torch.manual_seed(1)
    us3l.create("resnet18", stem="cifar", base=8).save(run.model, overwrite=True)
    with pytest.raises(UserError, match=r"boxes-0\.5x\.json belongs to another model.*detect again"):
        _ = run.detections


@pytest.mark.parametrize(
    "text", ["{", "{}", '{"version": 3}', '{"version": 2}', '{"version": 2, "boxes": {"overall": 1}}']
)
def test_damaged_files_are_one_line(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(UserError, match=r"x\.json"):
        DETECTION_RECORDS.load(tmp_path / "x.json")
