"""What a detector on one width found: detect/NAME-WIDTHx.json in a run's folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from us3l.run.folder import Run
from us3l.run.identity import clean, short, source_of
from us3l.run.records import Number, StampedRecord, Store, WholeNumber, by_date
from us3l.system.files import write_text
from us3l.width import Width

DETECTIONS = "-detections.json"  # beside a record: all detections, in COCO's form
DETECTOR = ".pt"  # beside a record: the detector, and the state of its training


@dataclass(frozen=True)
class AveragePrecision:
    """In percent: averaged over overlaps of 50 to 95 %, and at 50 and 75 %. None where there is nothing to find."""

    ap: Number | None
    ap50: Number | None
    ap75: Number | None


@dataclass(frozen=True)
class Scores:
    """How well the objects were found."""

    overall: AveragePrecision
    """The mean of the classes that there are objects of."""
    classes: dict[str, AveragePrecision]


@dataclass(frozen=True)
class DetectionRecord(StampedRecord):
    """All that is known of one trained detector."""

    data: str
    """As the user named it."""
    layout: str
    width: Width
    training: dict[str, Any]
    train_images: WholeNumber
    test_images: WholeNumber
    losses: list[float]
    """NaN where training diverged."""
    boxes: Scores
    masks: Scores | None = None
    untrained: dict[str, Scores | None] | None = None
    """The same of the detector before training, as "boxes" and "masks", if it was asked for."""
    skipped: dict[str, list[str]] = field(default_factory=dict)
    """Images that could not be used, in "training" and "test"."""
    source: str | None = None
    """A known name, or the resolved path of the data."""

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A dictionary per class, that of all classes first: `boxes_ap50` and the like, in percent."""
        kinds = {kind: scores for kind, scores in (("boxes", self.boxes), ("masks", self.masks)) if scores}
        rows: list[dict[str, Any]] = [{"class": "all"}, *({"class": name} for name in self.boxes.classes)]
        for kind, scores in kinds.items():
            for row, precision in zip(rows, (scores.overall, *scores.classes.values()), strict=True):
                row.update({f"{kind}_{name}": value for name, value in vars(precision).items()})
        return rows

    def is_of(self, data: str | Path, width: Width) -> bool:
        """Return whether it is of this data, whichever way that is written, at this width."""
        return (self.source or source_of(self.data)) == source_of(data) and self.width == width


DETECTION_RECORDS = Store(DetectionRecord, "detection_folder", 2, "detect", other_ending=DETECTIONS)


def detection_stem(folder: Path, name: str, data: str | Path, width: Width) -> Path:
    """Return the path without endings for the results of a detector.

    Args:
        folder: where results go.
        name: of the data.
        data: as the user named it: other data of that name gets a suffix.
        width: of the network.
    """
    stem = folder / f"{clean(name)}-{width:g}x"
    path = ended(stem, ".json")
    if path.exists() and not DETECTION_RECORDS.load(path).is_of(data, width):
        return folder / f"{clean(name)}-{short(source_of(data))}-{width:g}x"
    return stem


def ended(stem: Path, ending: str) -> Path:
    """Return the path of one of the files of a stem, whose dots are not endings."""
    return stem.with_name(stem.name + ending)


def write_detection(run: Run, stem: Path, record: DetectionRecord) -> DetectionRecord:
    """Write a record; return it as written.

    Args:
        run: Whose network the detector is built on.
        stem: What `detection_stem` gave.
        record: What was measured.
    """
    record = replace(record, name=stem.name, source=source_of(record.data))
    return DETECTION_RECORDS.write(run, record, stem.parent)


def write_boxes(stem: Path, detections: Sequence[Mapping[str, Any]]) -> None:
    """Write all detections, in COCO's form, beside their record."""
    write_text(ended(stem, DETECTIONS), json.dumps(detections))


def find_detection(run: Run, data: str | Path, width: Width) -> DetectionRecord | None:
    """Return the newest record of this data and width, whatever its name."""
    fitting = [record for record in run.detections.values() if record.is_of(data, width)]
    return by_date(fitting)[-1] if fitting else None
