"""What a detector on one width found: detect/NAME-WIDTHx.json in a run's folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from us3l import __version__
from us3l.run.checks import check_version, demand
from us3l.run.folder import Run
from us3l.run.identity import clean, short, source_of
from us3l.run.weights import Weights, check_weights
from us3l.system.errors import UserError
from us3l.system.files import finite, read_json, write_json, write_text
from us3l.width import Width

VERSION = 2  # of version 1, files name neither their version nor the weights
DETECTIONS = "-detections.json"  # beside a record: all detections, in COCO's form
DETECTOR = ".pt"  # beside a record: the detector, and the state of its training


@dataclass(frozen=True)
class AveragePrecision:
    """In percent: averaged over overlaps of 50 to 95 %, and at 50 and 75 %. None where there is nothing to find."""

    ap: float | None
    ap50: float | None
    ap75: float | None


@dataclass(frozen=True)
class Scores:
    """How well the objects were found."""

    overall: AveragePrecision
    """The mean of the classes that there are objects of."""
    classes: dict[str, AveragePrecision]


@dataclass(frozen=True)
class DetectionRecord:
    """All that is known of one trained detector."""

    data: str
    """As the user named it."""
    layout: str
    width: Width
    training: dict[str, Any]
    train_images: int
    test_images: int
    losses: list[float]
    boxes: Scores
    masks: Scores | None = None
    untrained: dict[str, Scores | None] | None = None
    """The same of the detector before training, as "boxes" and "masks", if it was asked for."""
    skipped: dict[str, list[str]] = field(default_factory=dict)
    """Images that could not be used, in "training" and "test"."""
    source: str | None = None
    """A known name, or the resolved path of the data."""
    weights: Weights | None = None
    us3l: str | None = None
    torch: str | None = None
    date: str | None = None

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A dictionary per class, that of all classes first: `boxes_ap50` and the like, in percent."""
        kinds = {kind: scores for kind, scores in (("boxes", self.boxes), ("masks", self.masks)) if scores}
        found: list[dict[str, Any]] = [{"class": "all"}, *({"class": name} for name in self.boxes.classes)]
        for kind, scores in kinds.items():
            for row, precision in zip(found, (scores.overall, *scores.classes.values()), strict=True):
                row.update({f"{kind}_{name}": value for name, value in vars(precision).items()})
        return found

    def is_of(self, data: str | Path, width: Width) -> bool:
        """Whether it was found on this data, whichever way that is written, at this width."""
        return (self.source or source_of(self.data)) == source_of(data) and self.width == width


def detection_stem(folder: Path, name: str, data: str | Path, width: Width) -> Path:
    """The path without endings for the results of a detector.

    Args:
        folder: where results go.
        name: of the data.
        data: as the user named it: other data of that name gets a suffix.
        width: of the network.
    """
    stem = folder / f"{clean(name)}-{width:g}x"
    path = ended(stem, ".json")
    if path.exists() and not read_detection(path).is_of(data, width):
        return folder / f"{clean(name)}-{short(source_of(data))}-{width:g}x"
    return stem


def ended(stem: Path, ending: str) -> Path:
    """The path of one of the files of a stem, whose dots are not endings."""
    return stem.with_name(stem.name + ending)


def write_detection(path: Path, record: DetectionRecord, run: Run) -> DetectionRecord:
    """Write a record, and return it as written: the run's weights, versions and the date are filled in."""
    date = f"{datetime.now().astimezone():%FT%T%z}"
    source = source_of(record.data)
    made = replace(record, source=source, weights=run.weights, us3l=__version__, torch=version("torch"), date=date)
    write_json(path, {"version": VERSION, **asdict(made)})
    return made


def write_found(stem: Path, found: Sequence[Mapping[str, Any]]) -> None:
    """Write all that a detector found, in COCO's form, beside its record."""
    write_text(ended(stem, DETECTIONS), json.dumps(found))


def read_detections(run: Run) -> dict[str, DetectionRecord]:
    """All of a run, by name; one of other weights than the model's is a `UserError`."""
    found = {}
    for path in sorted(run.detection_folder.glob("*.json")):
        if not path.name.endswith(DETECTIONS) and not path.name.startswith("."):
            found[path.stem] = read_detection(path)
            again = "detect again, with `overwrite`"
            check_weights(path, found[path.stem].weights, run.weights, again)
    return found


def find_detection(run: Run, data: str | Path, width: Width) -> DetectionRecord | None:
    """The newest one of this data and width, whatever its name."""
    fitting = [record for record in read_detections(run).values() if record.is_of(data, width)]
    return max(fitting, key=lambda record: record.date or "", default=None)


def read_detection(path: Path) -> DetectionRecord:
    """The record in a file, whichever model it belongs to."""
    content = read_json(path)
    check_version(path, content.pop("version", 1), (1, VERSION), VERSION)
    try:
        return _record(content)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} is not as us3l detect writes it ({error}): detect again, with `overwrite`") from None


def _record(content: Mapping[str, Any]) -> DetectionRecord:
    known = {one.name for one in fields(DetectionRecord)}
    values = {key: value for key, value in content.items() if key in known}
    for key in ("data", "layout"):
        demand(isinstance(values[key], str), key, values[key])
    for key in ("source", "us3l", "torch", "date"):
        demand(isinstance(values.get(key), str | None), key, values.get(key))
    values["width"] = Width.from_plain(values["width"])
    for key in ("train_images", "test_images"):
        demand(finite(values[key]) and values[key] >= 0, key, values[key])
    losses = values["losses"]
    demand(isinstance(losses, list) and all(isinstance(one, float) or finite(one) for one in losses), "losses", losses)
    values["boxes"], values["masks"] = _scores(values["boxes"]), _scores(values.get("masks"))
    demand(values["boxes"] is not None, "boxes", None)
    if (untrained := values.get("untrained")) is not None:
        values["untrained"] = {kind: _scores(scores) for kind, scores in untrained.items()}
    values["weights"] = Weights.of(values.get("weights"))
    return DetectionRecord(**values)


def _scores(value: Any) -> Scores | None:
    if value is None:
        return None
    return Scores(_precision(value["overall"]), {name: _precision(one) for name, one in value["classes"].items()})


def _precision(value: Any) -> AveragePrecision:
    for name, number in value.items():
        demand(number is None or finite(number), name, number)
    return AveragePrecision(**value)
