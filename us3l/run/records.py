"""What a run writes while it trains: its steps and gauges, each start, how fast it was (metrics, starts, speed.jsonl).

Nothing in metrics.jsonl depends on time or machine, so that a run that was stopped and resumed writes the same bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from us3l.run.folder import Run
from us3l.system.errors import UserError
from us3l.system.files import append_lines, as_plain, finite, parse_json, read_lines, write_text
from us3l.width import Width

VERSION = 2  # runs of version 1 have no starts.jsonl


@dataclass(frozen=True)
class Start:
    """A run begins, or is resumed."""

    time: str
    """When, as YYYY-MM-DD HH:MM:SS."""
    step: int
    """The first one to come."""
    steps: int
    images: int
    batch: int
    """Images in a batch of all devices."""
    devices: int
    device: str
    """Its kind, such as cpu or cuda."""
    us3l: str
    torch: str
    version: int = VERSION


@dataclass(frozen=True)
class StepRecord:
    """One optimiser step."""

    step: int
    epoch: int
    lr: float
    widths: list[Width]
    losses: list[float]
    """One for each width, that of the full network first."""


@dataclass(frozen=True)
class Skipped:
    """A step that was left out, as its gradients were not finite."""

    step: int
    epoch: int
    lr: float
    widths: list[Width]


@dataclass(frozen=True)
class Gauges:
    """Measurements of the embeddings after a step."""

    step: int
    epoch: int
    gauges: dict[str, dict[str, float]]
    """By width, such as "0.25", then by the gauge's name."""


@dataclass(frozen=True)
class Speed:
    """How long the steps of an epoch took, or those of it since the run was resumed; a line of speed.jsonl."""

    step: int = 0
    """The last of them."""
    epoch: int = 0
    images: int = 0
    seconds: float = 0.0
    waited: float = 0.0
    """Seconds of these in which the first process waited for images."""

    def after(self, step: int, epoch: int, images: int, seconds: float, waited: float) -> Speed:
        """The same with one more step."""
        return Speed(step, epoch, self.images + images, self.seconds + seconds, self.waited + waited)


Record = StepRecord | Skipped | Gauges
EVENTS = {"step": StepRecord, "skipped": Skipped, "monitor": Gauges}
NAMES = {kind: event for event, kind in EVENTS.items()}


def append_start(run: Run, start: Start) -> None:
    append_lines(run.starts, [json.dumps(asdict(start))])


def append_speed(run: Run, speed: Speed) -> None:
    append_lines(run.speeds, [json.dumps(asdict(speed))])


def read_speeds(run: Run) -> list[Speed]:
    """How fast each epoch was; of one that was resumed, its parts. None if the run is of an earlier version."""
    checks: dict[str, Callable[[Any], bool]]
    checks = {"step": _whole, "epoch": _whole, "images": _whole, "seconds": finite, "waited": finite}
    found = []
    for value, where in _objects(run.speeds) if run.speeds.exists() else ():
        if value.keys() != checks.keys() or not all(good(value[name]) for name, good in checks.items()):
            raise UserError(f"{where}: not a record of a run; is it damaged?")
        found.append(Speed(**value))
    return found


def append_records(run: Run, records: Sequence[Record]) -> None:
    rows = ({"event": NAMES[type(one)], **asdict(one)} for one in records)
    append_lines(run.metrics, [json.dumps(row, default=as_plain) for row in rows])


def read_starts(run: Run) -> list[Start]:
    """Every start of a run; none if it is of version 1."""
    return [_start(value, where) for value, where in _objects(run.starts)] if run.starts.exists() else []


def read_records(run: Run) -> list[Record]:
    """What a run recorded; a half-written last line, of a run at work or one that was killed, does not count."""
    read_starts(run)  # which refuses versions to come
    found = (_record(value, where) for value, where in _objects(run.metrics)) if run.metrics.exists() else ()
    return [record for record in found if record is not None]


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
    """The JSON objects of a file, one from each line, and where each is."""
    for number, line in enumerate(read_lines(path), start=1):
        where = f"{path}, line {number}"
        try:
            value = parse_json(line)
            if not isinstance(value, dict):
                raise ValueError
        except ValueError:
            if line.endswith("\n"):
                raise UserError(f"{where}: not a record of a run; is it damaged?") from None
            return
        yield value, where


def _start(value: dict[str, Any], where: str) -> Start:
    version = value.get("version")
    if version != VERSION:
        raise UserError(f"{where}: the run has format {version!r:.40}, but this us3l reads {VERSION}: use a newer one")
    good: dict[str, Callable[[Any], bool]] = {"int": _whole, "str": lambda text: isinstance(text, str)}
    hints = Start.__annotations__
    if value.keys() != hints.keys() or not all(good[hints[name]](item) for name, item in value.items()):
        raise UserError(f"{where}: not a record of a run; is it damaged?")
    return Start(**value)


def _record(value: dict[str, Any], where: str) -> Record | None:
    """The record in a line; None for an event that this version does not know."""
    event = value.get("event")
    if isinstance(event, str) and event not in EVENTS:
        return None
    if isinstance(value.get("widths"), list):
        value = value | {"widths": [*map(_named, value["widths"])]}
    checks = {"step": _whole, "epoch": _whole, "lr": finite, "widths": _widths, "losses": _numbers, "gauges": _gauges}
    kind = EVENTS.get(str(event))
    names = kind.__annotations__ if kind else ()
    good = all(name in value and checks[name](value[name]) for name in names)
    if kind is None or not good or (kind is StepRecord and len(value["widths"]) != len(value["losses"])):
        raise UserError(f"{where}: not a record of a run; is it damaged?")
    return kind(**{name: value[name] for name in names})


def _whole(value: Any) -> bool:
    return isinstance(value, int) and 0 <= value <= 2**53  # up to where floats tell whole numbers apart


def _widths(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, Width) for one in value)


def _named(value: Any) -> Any:
    """The width of a number or a name; what is not one stays as it is."""
    with suppress(ValueError):
        return Width.from_plain(value)
    return value


def _numbers(value: Any) -> bool:
    return isinstance(value, list) and all(map(finite, value))


def _gauges(value: Any) -> bool:
    def named(values: Any) -> bool:
        return isinstance(values, dict) and all(isinstance(one, float) or finite(one) for one in values.values())

    return isinstance(value, dict) and all(_is_number(width) and named(values) for width, values in value.items())


def _is_number(text: str) -> bool:
    try:
        return finite(float(text))
    except ValueError:
        return False


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
    """From the starts and the times of the log's lines; None of a run that did not start yet."""
    described: tuple[int, int, str] | None = None
    parts: list[list[datetime]] = []
    lines = _timed_lines(run.log)
    starts = read_starts(run)
    if starts:
        begins = [time for start in starts if (time := _time(start.time))]
        parts = [[begin, begin] for begin in begins]
        for time, _ in lines:
            for part, following in zip(parts, [*begins[1:], datetime.max], strict=False):
                if part[0] <= time < following:
                    part[1] = max(part[1], time)
        last = starts[-1]
        described = last.images, last.steps, f"{last.devices} x {last.device}"
    else:
        for time, line in lines:
            if found := STARTS_OF_VERSION_1.search(line):
                described = int(found[1]), int(found[2]), found[3]
                parts.append([time, time])
            elif parts:
                parts[-1][1] = time
    if described is None or not parts:
        return None
    seconds = sum(max(0.0, (end - begin).total_seconds()) for begin, end in parts)  # clocks may be set back
    return History(parts[0][0], parts[-1][1], seconds, len(parts), *described)


STARTS_OF_VERSION_1 = re.compile(r": (\d{1,15}) images, (\d{1,15}) steps of \d+, (\d+ x \w+)$")


def _timed_lines(path: Path) -> list[tuple[datetime, str]]:
    found = ((_time(line), line.rstrip()) for line in (read_lines(path) if path.exists() else ()))
    return [(time, line) for time, line in found if time]


def _time(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text[:19]).replace(tzinfo=None)
    except ValueError:
        return None
