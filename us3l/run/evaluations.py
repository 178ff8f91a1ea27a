"""What evaluation found: a record for each data set and protocol, in eval/NAME.json of a run's folder."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from us3l import __version__
from us3l.run.checks import check_version, demand
from us3l.run.folder import Run
from us3l.run.identity import DataIdentity, clean, source_of
from us3l.run.weights import Weights, check_weights
from us3l.system.errors import Caution, UserError
from us3l.system.files import finite, read_json, write_json
from us3l.width import AnyWidth, Width

if TYPE_CHECKING:
    from us3l.slimmable import Slimmable

VERSION = 3  # of version 1, files name neither their version nor the weights; of version 2, no `QUALITIES`
METRICS = {"linear": "linear probe", "finetuned": "fine-tuning", "knn": "kNN"}
"""The kinds of accuracy and what they are called, the one to prefer first."""
QUALITIES = {"rankme": "RankMe", "lidar": "LiDAR", "agreement": "agreement with 1x"}
"""What is measured without labels (see `us3l.evaluation.unlabelled`), and what it is called."""
EvaluationSplit = Literal["test", "validation"]
PROTOCOLS = ("fast", "paper", "finetune", "classifier")
"""The one to prefer first."""
SETTINGS = ("protocol", "probe", "training", "size", "train_images", "test_images", "seeds")
"""What must be equal for two results to stand in one table."""


@dataclass(frozen=True)
class WidthResult:
    """One width: its cost, its accuracies in percent, those of the same network untrained, and its quality without
    labels (None: not measured)."""

    width: Width
    params: int
    macs: int
    knn: float | None = None
    linear: float | None = None
    knn_untrained: float | None = None
    linear_untrained: float | None = None
    finetuned: float | None = None
    knn_top5: float | None = None
    linear_top5: float | None = None
    finetuned_top5: float | None = None
    rankme: float | None = None
    lidar: float | None = None
    agreement: float | None = None
    """In percent."""

    @property
    def quality(self) -> dict[str, Any]:
        """What was measured without labels, by the names of `QUALITIES`."""
        return {name: value for name in QUALITIES if (value := getattr(self, name)) is not None}


@dataclass(frozen=True)
class Score:
    """How one classifier did on the test images, in percent."""

    top1: float
    top5: float | None
    """None with five classes or fewer."""
    low: float
    high: float
    """The 95 % interval of top1 (Wilson's), for the number of test images."""
    per_class: tuple[float | None, ...]
    """Top-1 for each class; None where it has no test image."""
    deviation: float | None = None
    """The standard deviation of top1 over seeds, when there were several."""
    seeds: int = 1


@dataclass(frozen=True)
class FewLabels:
    """The linear probe of one width, learned from a share of the labels."""

    width: Width
    share: float
    images: int
    linear: Score


@dataclass(frozen=True)
class EvaluationRecord:
    """All that one evaluation found, and what it was measured with."""

    name: str
    """Of its file, eval/NAME.json."""
    widths: list[WidthResult]
    data: str | None = None
    """As the user named it."""
    identity: DataIdentity | None = None
    protocol: str | None = None
    split: EvaluationSplit = "test"
    """Which images it was tested on: the test images, or validation images that were held out of the training ones."""
    probe: str | None = None
    """Which of the paper's probes, if it was one."""
    training: dict[str, Any] | None = None
    """Settings of a protocol that trains by steps."""
    size: int | None = None
    """Side of the images in pixels."""
    train_images: int | None = None
    test_images: int | None = None
    seeds: int | None = None
    classes: list[str] | None = None
    scores: dict[Width, dict[str, Score]] = field(default_factory=dict)
    """By width, then by a name of `METRICS`."""
    few_labels: list[FewLabels] = field(default_factory=list)
    weights: Weights | None = None
    """None in version 1."""
    us3l: str | None = None
    torch: str | None = None
    date: str | None = None

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One dictionary per width, for pandas: costs, accuracies, and the 95 % interval of each accuracy."""
        return [
            {name: value for name, value in asdict(result).items() if value is not None}
            | {"width": Width(result.width).as_plain()}
            | {
                f"{kind}_{end}": getattr(score, end)
                for kind, score in self.scores.get(result.width, {}).items()
                for end in ("low", "high")
            }
            for result in self.widths
        ]

    @property
    def metric(self) -> str | None:
        """The preferred one of those measured."""
        return next((name for name in METRICS if self.percent(name)), None)

    def percent(self, metric: str) -> dict[Width, float]:
        """The accuracies by width.

        Args:
            metric: "linear", "finetuned" or "knn".

        Returns:
            Percent, for the widths that have it.
        """
        return {row.width: value for row in self.widths if (value := getattr(row, metric)) is not None}

    def at(self, net: Slimmable, width: AnyWidth) -> WidthResult | None:
        """What was found for the network that a width stands for.

        Args:
            net: The slimmable network.
            width: Any width of it; several may mean the same network.

        Returns:
            The result; None if that network was not evaluated.
        """
        fitting = (row for row in self.widths if net.canonical(row.width) == net.canonical(width))
        return next(fitting, None)

    def is_of(self, data: str | Path, protocol: str, split: str = "test") -> bool:
        """Whether it was found on this split of this data, whichever way that is written, by this protocol."""
        source = self.identity.source if self.identity else None if self.data is None else source_of(self.data)
        return source == source_of(data) and self.protocol == protocol and self.split == split


# Files


def evaluation_file(run: Run, name: str) -> Path:
    """Where an evaluation of that name is kept."""
    if not name or name.startswith(".") or "/" in name or "\\" in name or not name.isprintable():
        raise UserError(f"{name!r} cannot name an evaluation: use letters, digits, - and _")
    return run.evaluation_folder / f"{name}.json"


def read_evaluations(run: Run, check: bool = True) -> dict[str, EvaluationRecord]:
    """All evaluations of a run, by name.

    Args:
        check: whether one of other weights than the model's is an error.
    """
    names = [path.stem for path in sorted(run.evaluation_folder.glob("*.json")) if not path.name.startswith(".")]
    return {name: read_evaluation(run, name, check) for name in names}


def read_evaluation(run: Run, name: str, check: bool = True) -> EvaluationRecord:
    """One evaluation by its name; see `read_evaluations`."""
    path = evaluation_file(run, name)
    if not path.exists():
        raise UserError(f"there is no file {path}: `us3l.evaluate({str(run.folder)!r}, data=DATA)` writes it")
    content = read_json(path)
    check_version(path, content.get("version", 1), (1, 2, VERSION), VERSION)
    try:
        record = _record(name, content)
    except (AttributeError, KeyError, TypeError, ValueError, UserError) as error:
        raise UserError(
            f"{path} is not as us3l evaluate writes it ({error}): evaluate again, with `overwrite`"
        ) from None
    if check and run.model.is_dir():
        check_weights(path, record.weights, run.weights, "evaluate again, with `overwrite`")
    return record


def find_evaluation(
    run: Run, data: str | Path, protocol: str, split: EvaluationSplit = "test"
) -> EvaluationRecord | None:
    """The evaluation on this split of this data by this protocol, whatever its name; of several the newest."""
    fitting = [record for record in read_evaluations(run).values() if record.is_of(data, protocol, split)]
    return max(fitting, key=lambda record: record.date or "", default=None)


def usual_evaluation(records: Mapping[str, EvaluationRecord]) -> EvaluationRecord:
    """The evaluation that counts when none is named: of the protocols that one data set has, the first of `PROTOCOLS`,
    and of its splits the test images.

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

    newest_first = sorted(records.values(), key=lambda record: record.date or "", reverse=True)
    return min(newest_first, key=order)


def settle(run: Run, record: EvaluationRecord, name: str | None = None, overwrite: bool = False) -> EvaluationRecord:
    """What is to be in the file: a record joined with what an earlier evaluation found, if the two fit together.

    Call it before the work, without widths, to learn early what speaks against it; and again before `write_evaluation`.

    Args:
        record: its `name` is the one that it would like to have; it gets a suffix if other data has taken it. Weights,
            versions and date are filled in.
        name: another name that the user wants.
        overwrite: replace an earlier record of that name instead of joining it.
    """
    record = replace(record, name=clean(record.name))
    date = f"{datetime.now().astimezone():%FT%T%z}"
    record = replace(record, weights=run.weights, us3l=__version__, torch=version("torch"), date=date)
    record = replace(record, name=name or free_name(run, record))
    path = evaluation_file(run, record.name)
    return record if overwrite or not path.exists() else joined(path, read_evaluation(run, record.name, False), record)


def write_evaluation(run: Run, record: EvaluationRecord) -> Path:
    """Write a record that was settled; returns its file."""
    path = evaluation_file(run, record.name)
    content = {"version": VERSION, **asdict(record)}
    content["scores"] = {f"{width:g}": kinds for width, kinds in content["scores"].items()}
    del content["name"]
    write_json(path, content)
    return path


def free_name(run: Run, record: EvaluationRecord) -> str:
    """The record's own name, unless other data has taken it."""
    path = evaluation_file(run, record.name)
    if record.identity is None or record.protocol is None or not path.exists():
        return record.name
    there = read_evaluation(run, record.name, check=False)
    ours = there.is_of(record.identity.source, record.protocol, record.split)
    return record.name if ours else f"{record.name}-{record.identity.short}"


def _plain(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def joined(path: Path, old: EvaluationRecord, new: EvaluationRecord) -> EvaluationRecord:
    """The new record with the widths of the old one that it does not have."""
    advice = "choose another `name`, or set `overwrite`"
    if new.identity is None or new.protocol is None or not old.is_of(new.identity.source, new.protocol, new.split):
        raise UserError(f"{path} holds an evaluation of other data ({old.data}): {advice}")
    if old.weights is None:
        warnings.warn(f"{path} does not say which weights it belongs to: its widths are kept", Caution, stacklevel=3)
    elif new.weights is None or old.weights.differences(new.weights):
        raise UserError(f"{path} was measured with other weights than the model has now: {advice}")
    differing = [
        f"{name} {getattr(old, name)} instead of {getattr(new, name)}"
        for name in SETTINGS
        if _plain(getattr(old, name)) != _plain(getattr(new, name)) and not (old.weights is None and name == "seeds")
    ]
    if differing:
        raise UserError(f"{path} was made with other settings ({'; '.join(differing)}): {advice}")
    if old.identity is not None and not old.identity.agrees(new.identity):
        raise UserError(f"{path} was made when {new.data} held other images: {advice}")
    measured = {row.width for row in new.widths}
    rows = [*new.widths, *(row for row in old.widths if row.width not in measured)]
    few = {(one.width, one.share): one for one in [*old.few_labels, *new.few_labels]}
    return replace(
        new,
        widths=sorted(rows, key=lambda row: row.width, reverse=True),
        scores=old.scores | new.scores,
        few_labels=sorted(sorted(few.values(), key=lambda one: one.share), key=lambda one: one.width, reverse=True),
    )


# Reading


def _record(name: str, content: dict[str, Any]) -> EvaluationRecord:
    known = {one.name for one in fields(EvaluationRecord)} - {"name"}
    values = {key: value for key, value in content.items() if key in known}
    values["widths"] = from_plain(content.get("widths"))
    if (identity := content.get("identity")) is not None:
        values["identity"] = DataIdentity(**identity)
    values["weights"] = Weights.of(content.get("weights"))
    for key in ("data", "protocol", "probe", "us3l", "torch", "date"):
        demand(isinstance(content.get(key), str | None), key, content.get(key))
    demand(content.get("split", "test") in get_args(EvaluationSplit), "split", content.get("split"))
    for key in ("size", "train_images", "test_images", "seeds"):
        value = content.get(key)
        demand(value is None or (isinstance(value, int) and finite(value) and value >= 0), key, value)
    classes = content.get("classes")
    demand(
        classes is None or (isinstance(classes, list) and all(isinstance(c, str) for c in classes)), "classes", classes
    )
    demand(isinstance(content.get("training"), dict | None), "training", content.get("training"))
    scores = content.get("scores") or {}
    values["scores"] = {
        Width(width): {metric: _score(one) for metric, one in kinds.items()} for width, kinds in scores.items()
    }
    for score in (score for kinds in values["scores"].values() for score in kinds.values()):
        demand(not classes or len(score.per_class) == len(classes), "per_class", score.per_class)
    values["few_labels"] = [
        FewLabels(**(one | {"width": Width.from_plain(one["width"]), "linear": _score(one["linear"])}))
        for one in content.get("few_labels") or []
    ]
    return EvaluationRecord(name, **values)


def _score(value: dict[str, Any]) -> Score:
    for name, number in value.items():
        if name != "per_class":
            demand(number is None or finite(number), name, number)
    per_class = value["per_class"]
    demand(isinstance(per_class, list) and all(one is None or finite(one) for one in per_class), "per_class", per_class)
    return Score(**(value | {"per_class": tuple(per_class)}))


def from_plain(rows: object) -> list[WidthResult]:
    """The results in parsed JSON; anything else is a `UserError`.

    >>> from_plain([{"width": 0.5, "params": 10, "macs": 20, "knn": 60.0}])[0].knn
    60.0
    """
    if not isinstance(rows, list):
        raise UserError(f"results must be a list with one entry a width, not {type(rows).__name__}")
    return [_result(row, index) for index, row in enumerate(rows)]


def _result(row: object, index: int) -> WidthResult:
    if not isinstance(row, dict):
        raise UserError(f"results entry {index}: expected a dictionary, got {type(row).__name__}")
    names = [field.name for field in fields(WidthResult)]
    if unknown := sorted(map(str, row.keys() - set(names))):
        raise UserError(f"results entry {index}: unknown {', '.join(unknown):.200}; known are {', '.join(names)}")
    if isinstance(row.get("width"), str):
        row = row | {"width": _named(row["width"], index)}
        names.remove("width")
    for name in names:
        value, is_cost = row.get(name), name in ("width", "params", "macs")
        if value is None and not is_cost:
            continue
        kind = int if name in ("params", "macs") else (int, float)
        # bool is an int to Python, and json reads NaN and Infinity: neither is a measurement.
        if isinstance(value, bool) or not isinstance(value, kind) or not finite(value) or (is_cost and value <= 0):
            wanted = "a whole number" if kind is int else "a number"
            raise UserError(
                f"results entry {index}: {name} must be {wanted}{' above 0' if is_cost else ''}, got {value!r:.50}"
            )
    return WidthResult(**row)


def _named(name: str, index: int) -> Width:
    try:
        return Width.from_plain(name)
    except ValueError as error:
        raise UserError(f"results entry {index}: {error}") from None
