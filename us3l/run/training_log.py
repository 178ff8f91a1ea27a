"""What a run writes while it trains: its steps and gauges, each start, how fast it was (metrics, starts, speed.jsonl).

Nothing in metrics.jsonl depends on time or machine, so that a run that was stopped and resumed writes the same bytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from us3l.run.folder import Run
from us3l.run.records import Number, WholeNumber, check_version, convert, said
from us3l.system.errors import UserError
from us3l.system.files import append_lines, as_plain, parse_json, read_lines, write_text
from us3l.width import Width

VERSION = 2


@dataclass(frozen=True)
class Start:
    """A run begins, or is resumed."""

    time: str
    """When, as YYYY-MM-DD HH:MM:SS."""
    step: WholeNumber
    """The first one to come."""
    steps: WholeNumber
    images: WholeNumber
    batch: WholeNumber
    """Images in a batch of all devices."""
    devices: WholeNumber
    device: str
    """Its kind, such as cpu or cuda."""
    us3l: str
    torch: str
    version: int = VERSION


@dataclass(frozen=True)
class StepRecord:
    """One optimiser step."""

    step: WholeNumber
    epoch: WholeNumber
    lr: Number
    widths: list[Width]
    losses: list[Number]
    """One for each width, that of the full network first."""

    def __post_init__(self) -> None:
        if len(self.widths) != len(self.losses):
            raise ValueError(f"losses: {len(self.losses)} for {len(self.widths)} widths")


@dataclass(frozen=True)
class Skipped:
    """A step that was left out, as its gradients were not finite."""

    step: WholeNumber
    epoch: WholeNumber
    lr: Number
    widths: list[Width]


@dataclass(frozen=True)
class Gauges:
    """Measurements of the embeddings after a step."""

    step: WholeNumber
    epoch: WholeNumber
    gauges: dict[str, dict[str, float]]
    """By width, such as "0.25", then by the gauge's name."""

    def __post_init__(self) -> None:
        for width in self.gauges:
            if not math.isfinite(float(width)):
                raise ValueError(f"gauges: {width!r:.40} is not a width")


@dataclass(frozen=True)
class Speed:
    """How long the steps of an epoch took, or those of it since the run was resumed; a line of speed.jsonl."""

    step: WholeNumber = 0
    """The last of them."""
    epoch: WholeNumber = 0
    images: WholeNumber = 0
    seconds: Number = 0.0
    waited: Number = 0.0
    """Seconds of these in which the first process waited for images."""

    def after(self, step: int, epoch: int, images: int, seconds: float, waited: float) -> Speed:
        """The same with one more step."""
        return Speed(step, epoch, self.images + images, self.seconds + seconds, self.waited + waited)


@dataclass(frozen=True)
class Event:
    """What tells the lines of metrics.jsonl apart."""

    event: str


Record = StepRecord | Skipped | Gauges
T = TypeVar("T")
EVENTS: dict[str, type[Record]] = {"step": StepRecord, "skipped": Skipped, "monitor": Gauges}
NAMES = {kind: event for event, kind in EVENTS.items()}


def append_start(run: Run, start: Start) -> None:
    """Add a line to starts.jsonl."""
    append_lines(run.starts, [json.dumps(asdict(start))])


def append_speed(run: Run, speed: Speed) -> None:
    """Add a line to speed.jsonl."""
    append_lines(run.speeds, [json.dumps(asdict(speed))])


def append_records(run: Run, records: Sequence[Record]) -> None:
    """Add lines to metrics.jsonl."""
    rows = ({"event": NAMES[type(record)], **asdict(record)} for record in records)
    append_lines(run.metrics, [json.dumps(row, default=as_plain) for row in rows])


def read_speeds(run: Run) -> list[Speed]:
    """Return how fast each epoch was; of one that was resumed, its parts."""
    return [convert_line(value, Speed, where) for value, where in _objects(run.speeds)]


def read_starts(run: Run) -> list[Start]:
    """Return every start of a run."""
    starts = []
    for value, where in _objects(run.starts):
        check_version(where, value.get("version"), (VERSION,), "train again")
        starts.append(convert_line(value, Start, where))
    return starts


def read_records(run: Run) -> list[Record]:
    """Return what a run recorded, without events that this version does not know."""
    read_starts(run)  # which refuses versions to come
    records = []
    for value, where in _objects(run.metrics):
        event = convert_line(value, Event, where).event
        if event in EVENTS:
            records.append(convert_line(value, EVENTS[event], where))
    return records


def cut_records(run: Run, step: int) -> None:
    """Drop the records that a resumed run will write again, those from `step` on; and all from a damaged line on."""
    kept = []
    for line in read_lines(run.metrics) if run.metrics.exists() else ():
        try:
            if not line.endswith("\n"):
                break
            if parse_json(line)["step"] < step:
                kept.append(line)
        except (ValueError, KeyError, TypeError):
            break
    write_text(run.metrics, "".join(kept))


def _objects(path: Path) -> Iterable[tuple[dict[str, Any], str]]:
    """Yield the JSON object of each line, and where it is.

    A half-written last line, of a run at work or one that was killed, does not count.
    """
    for number, line in enumerate(read_lines(path) if path.exists() else (), start=1):
        where = f"{path}, line {number}"
        try:
            value = parse_json(line)
            if not isinstance(value, dict):
                raise ValueError("no JSON object")
        except ValueError as error:
            if line.endswith("\n"):
                raise UserError(f"{where}: not a record of a run ({said(error)}); is it damaged?") from None
            return
        yield value, where


def convert_line(value: dict[str, Any], kind: type[T], where: str) -> T:
    """Return the object of a line as a declared type; what does not fit is a `UserError` that says where it is."""
    try:
        return convert(value, kind)
    except ValueError as error:
        raise UserError(f"{where}: not a record of a run ({said(error)}); is it damaged?") from None


# How long it took


@dataclass(frozen=True)
class History:
    """When, on what and how long a run was trained."""

    started: datetime
    ended: datetime
    seconds: float
    """Without the time between a stop and the next start."""
    parts: int
    images: int
    steps: int
    device: str

    @property
    def in_parts(self) -> str:
        return f", in {self.parts} parts" if self.parts > 1 else ""


def read_history(run: Run) -> History | None:
    """Return how long a run took, by its starts and the times in its log; None if it did not start yet."""
    starts = read_starts(run)
    begins = [time for start in starts if (time := _time(start.time))]
    if not begins:
        return None
    parts = [[begin, begin] for begin in begins]
    for time in _times(run.log):
        for part, following in zip(parts, [*begins[1:], datetime.max], strict=False):
            if part[0] <= time < following:
                part[1] = max(part[1], time)
    seconds = sum(max(0.0, (end - begin).total_seconds()) for begin, end in parts)  # clocks may be set back
    last = starts[-1]
    device = f"{last.devices} x {last.device}"
    return History(parts[0][0], parts[-1][1], seconds, len(parts), last.images, last.steps, device)


def _times(path: Path) -> list[datetime]:
    """Return the times at which lines of a log begin."""
    return [time for line in (read_lines(path) if path.exists() else ()) if (time := _time(line))]


def _time(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text[:19]).replace(tzinfo=None)
    except ValueError:
        return None
