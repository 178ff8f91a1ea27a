"""What evaluation measured: a record for each data set and protocol, in eval/NAME.json of a run's folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from us3l.costs import Cost
from us3l.run.folder import Run
from us3l.run.identity import DataIdentity, EvaluationSplit, clean, source_of
from us3l.run.records import Number, Positive, StampedRecord, Store, WholeNumber, by_date, plain
from us3l.system.errors import UserError
from us3l.width import AnyWidth, Width

if TYPE_CHECKING:
    from us3l.slimmable import Slimmable

METRICS = {"linear": "linear probe", "finetuned": "fine-tuning", "knn": "kNN"}
"""The kinds of accuracy and what they are called, the one to prefer first."""
QUALITIES = {"rankme": "RankMe", "lidar": "LiDAR", "agreement": "agreement with 1x"}
"""What is measured without labels (see `us3l.evaluation.unlabelled`), and what it is called."""
PROTOCOLS = ("fast", "paper", "finetune", "classifier")
"""The one to prefer first."""
SETTINGS = ("protocol", "probe", "training", "size", "train_images", "test_images", "seeds", "start")
"""What must be equal for two results to stand in one table."""


@dataclass(frozen=True)
class Score:
    """The accuracy of one classifier on the test images, in percent."""

    top1: Number
    top5: Number | None
    """None with five classes or fewer."""
    low: Number
    high: Number
    """The 95 % interval of top1 (Wilson's), for the number of test images."""
    per_class: tuple[Number | None, ...]
    """Top-1 for each class; None where it has no test image."""
    deviation: Number | None = None
    """The standard deviation of top1 over seeds, when there were several."""
    seeds: Positive = 1
    images: Positive | None = None
    """Test images that could be read. None in records of earlier versions."""


@dataclass(frozen=True)
class WidthResult:
    """All that was measured at one width. None, or no entry: not measured.

    A new figure of a width is a field here; `row`, the file and `EvaluationRecord.rows` have it by its name.
    """

    width: Width
    cost: Cost
    scores: dict[str, Score] = field(default_factory=dict)
    """By the names of `METRICS`."""
    untrained: dict[str, Number] = field(default_factory=dict)
    """Top-1 of the network that training began with, by the names of `METRICS`."""
    rankme: Number | None = None
    lidar: Number | None = None
    agreement: Number | None = None
    """In percent."""

    @property
    def quality(self) -> dict[str, float]:
        """What was measured without labels, by the names of `QUALITIES`."""
        return {name: value for name in QUALITIES if (value := getattr(self, name)) is not None}

    def percent(self, metric: str) -> float | None:
        """Return one of its accuracies: top-1 by a name of `METRICS`."""
        return self.scores[metric].top1 if metric in self.scores else None

    @property
    def row(self) -> dict[str, Any]:
        """All figures by one name each, as a row of a table; None where it was not measured."""
        row = {"width": self.width.as_plain(), **vars(self.cost)}
        for metric in METRICS:
            score = self.scores.get(metric)
            row |= {metric: score and score.top1, f"{metric}_untrained": self.untrained.get(metric)}
            row |= {f"{metric}_{name}": score and getattr(score, name) for name in ("top5", "low", "high")}
        return row | {name: value for name, value in vars(self).items() if name not in COMPOSED}


COMPOSED = ("width", "cost", "scores", "untrained")


@dataclass(frozen=True)
class FewLabels:
    """The linear probe of one width, learned from a share of the labels."""

    width: Width
    share: Number
    images: WholeNumber
    linear: Score


@dataclass(frozen=True)
class EvaluationRecord(StampedRecord):
    """All that one evaluation measured, and with what."""

    widths: list[WidthResult]
    data: str | None = None
    """As the user named it."""
    identity: DataIdentity | None = None
    split: EvaluationSplit = "test"
    """Which images it was tested on: the test images, or validation images that were held out of the training ones."""
    protocol: str | None = None
    probe: str | None = None
    """Which of the paper's probes, if it was one."""
    training: dict[str, Any] | None = None
    """Settings of a protocol that trains by steps."""
    size: WholeNumber | None = None
    """Side of the images in pixels."""
    train_images: WholeNumber | None = None
    test_images: WholeNumber | None = None
    """Those that could not be read are counted; see `tested`."""
    duplicates: WholeNumber | None = None
    """How many of the test images are training images too, byte by byte. None in records of earlier versions."""
    start: str | None = None
    """The pretrained network that the run began with, whose accuracy is `untrained`. None: one of random weights."""
    seeds: WholeNumber | None = None
    classes: list[str] | None = None
    few_labels: list[FewLabels] = field(default_factory=list)

    def __post_init__(self) -> None:
        for score in (score for row in self.widths for score in row.scores.values()):
            if self.classes and len(score.per_class) != len(self.classes):
                raise ValueError(f"scores: {len(score.per_class)} classes instead of {len(self.classes)}")

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One dictionary per width, for pandas: costs, accuracies, and the 95 % interval of each accuracy."""
        return [{name: value for name, value in result.row.items() if value is not None} for result in self.widths]

    @property
    def tested(self) -> int | None:
        """The number of test images that the scores are of: those that could be read."""
        read = (score.images for row in self.widths for score in row.scores.values() if score.images)
        return next(read, self.test_images)

    @property
    def metric(self) -> str | None:
        """The preferred one of those measured."""
        return next((name for name in METRICS if self.percent(name)), None)

    def percent(self, metric: str) -> dict[Width, float]:
        """Return the accuracies by width.

        Args:
            metric: "linear", "finetuned" or "knn".

        Returns:
            Percent, for the widths that have it.
        """
        return {row.width: value for row in self.widths if (value := row.percent(metric)) is not None}

    def at(self, net: Slimmable, width: AnyWidth) -> WidthResult | None:
        """Return the result of the network that a width stands for.

        Args:
            net: The slimmable network.
            width: Any width of it; several may mean the same network.

        Returns:
            The result; None if that network was not evaluated.
        """
        fitting = (row for row in self.widths if net.canonical(row.width) == net.canonical(width))
        return next(fitting, None)

    def is_of(self, data: str | Path, protocol: str, split: str = "test") -> bool:
        """Return whether it was measured on this split of this data, however that is written, by this protocol."""
        source = self.identity.source if self.identity else None if self.data is None else source_of(self.data)
        return source == source_of(data) and self.protocol == protocol and self.split == split


# Files


def _to_file(record: EvaluationRecord) -> dict[str, Any]:
    """Rows as tables have them, and beside them the scores by width."""
    content = plain(record)
    pairs = list(zip(record.widths, content["widths"], strict=True))
    scores = {f"{row.width:g}": values["scores"] for row, values in pairs if row.scores}
    return content | {"widths": [row.row for row in record.widths], "scores": scores}


def _from_file(content: dict[str, Any]) -> dict[str, Any]:
    scores, rows = content.get("scores") or {}, []
    if not isinstance(content["widths"], list):
        raise ValueError("widths must be a list")
    for row in content["widths"]:
        untrained = {metric: row.get(f"{metric}_untrained") for metric in METRICS}
        composed = {
            "cost": row,
            "scores": scores.get(f"{Width.from_plain(row['width']):g}", {}),
            "untrained": {metric: value for metric, value in untrained.items() if value is not None},
        }
        rows.append(row | composed)
    return content | {"widths": rows}


EVALUATIONS = Store(EvaluationRecord, "evaluation_folder", 3, "evaluate", to_file=_to_file, from_file=_from_file)


def find_evaluation(
    run: Run, data: str | Path, protocol: str, split: EvaluationSplit = "test"
) -> EvaluationRecord | None:
    """Return the evaluation on this split of this data by this protocol, whatever its name; of several the newest."""
    fitting = by_date(record for record in run.evaluations.values() if record.is_of(data, protocol, split))
    return fitting[-1] if fitting else None


def usual_evaluation(records: Mapping[str, EvaluationRecord]) -> EvaluationRecord:
    """Return the evaluation that counts when none is named: of one data set, that on the test images by the first of
    `PROTOCOLS`.

    Args:
        records: By name; at least one.

    Raises:
        UserError: They are of several data sets.
    """
    sources = {record.identity.source if record.identity else record.data or name for name, record in records.items()}
    if len(sources) > 1:
        raise UserError(f"there are evaluations of several data sets, {', '.join(records)}: say which counts (`data`)")

    def order(record: EvaluationRecord) -> tuple[bool, int]:
        protocol = PROTOCOLS.index(record.protocol) if record.protocol in PROTOCOLS else len(PROTOCOLS)
        return record.split != "test", protocol

    return min(reversed(by_date(records.values())), key=order)


def with_earlier(
    run: Run, record: EvaluationRecord, name: str | None = None, overwrite: bool = False
) -> EvaluationRecord:
    """Return what is to be in the file: a record joined with an earlier one of its name, if the two fit together.

    Call it before the work, without widths, to learn early what speaks against it; and again before it is written.

    Args:
        run: Whose network is evaluated.
        record: Its `name` is the one that it would like to have; it gets a suffix if other data has taken it.
        name: Another name that the user wants.
        overwrite: Replace an earlier record of that name instead of joining it.
    """
    if name is not None and clean(name) != name:
        raise UserError(f"{name!r} cannot name an evaluation: use letters, digits, - and _")
    record = EVALUATIONS.stamp(run, record)
    record = replace(record, name=name or free_name(run, record))
    path = EVALUATIONS.file(run, record.name)
    if overwrite or not path.exists():
        return record
    return joined(path, EVALUATIONS.read(run, record.name, check=False), record)


def free_name(run: Run, record: EvaluationRecord) -> str:
    """Return the record's name, with a suffix if other data has taken it."""
    if record.identity is None or record.protocol is None or not EVALUATIONS.file(run, record.name).exists():
        return record.name
    there = EVALUATIONS.read(run, record.name, check=False)
    same = there.is_of(record.identity.source, record.protocol, record.split)
    return record.name if same else f"{record.name}-{record.identity.short}"


def joined(path: Path, old: EvaluationRecord, new: EvaluationRecord) -> EvaluationRecord:
    """Return the new record with the widths of the old one that it does not have."""
    advice = "choose another `name`, or set `overwrite`"
    if new.identity is None or new.protocol is None or not old.is_of(new.identity.source, new.protocol, new.split):
        raise UserError(f"{path} holds an evaluation of other data ({old.data}): {advice}")
    if old.weights is None or new.weights is None or old.weights.differences(new.weights):
        raise UserError(f"{path} was measured with other weights than the model has now: {advice}")
    differing = [
        f"{name} {getattr(old, name)} instead of {getattr(new, name)}"
        for name in SETTINGS
        if _text(getattr(old, name)) != _text(getattr(new, name))
    ]
    if differing:
        raise UserError(f"{path} was made with other settings ({'; '.join(differing)}): {advice}")
    if old.identity is not None and not old.identity.agrees(new.identity):
        raise UserError(f"{path} was made when {new.data} held other images: {advice}")
    rows = {row.width: row for row in [*old.widths, *new.widths]}
    few = {(few.width, few.share): few for few in [*old.few_labels, *new.few_labels]}
    return replace(
        new,
        widths=sorted(rows.values(), key=lambda row: row.width, reverse=True),
        few_labels=sorted(few.values(), key=lambda few: (few.width, -few.share), reverse=True),
    )


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


# Retrieval across widths


@dataclass(frozen=True)
class Retrieval:
    """How well queries of one width find images of their class in a gallery of another, in percent."""

    query: Width
    gallery: Width
    recall: Number
    """Recall@1: the nearest image of the gallery is of the query's class."""
    knn: Number
    """kNN accuracy, as `us3l evaluate` measures it."""


@dataclass(frozen=True)
class RetrievalRecord(StampedRecord):
    """Every query width in every gallery width."""

    data: str
    rows: list[Retrieval]
    gallery_images: WholeNumber
    query_images: WholeNumber


RETRIEVALS = Store(RetrievalRecord, "retrieval_folder", 1, "evaluate")
