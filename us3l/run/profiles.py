"""What every width costs and how fast it is on a device: profile/DEVICE.json and DEVICE.csv in a run's folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from us3l.run.folder import Run
from us3l.run.identity import slug
from us3l.run.records import Amount, StampedRecord, Store, WholeNumber, by_date, by_width, write_csv
from us3l.system.errors import UserError
from us3l.width import Width


@dataclass(frozen=True)
class Costs:
    """What does not depend on the device."""

    width: Width
    params: WholeNumber
    macs: WholeNumber
    bytes: WholeNumber
    """Weights and batch-norm statistics as stored in 32 bits."""
    memory: WholeNumber
    """Peak bytes of the activations for one image: see `us3l.deploy.peak_memory`."""


@dataclass(frozen=True)
class Latency:
    """Milliseconds for one batch."""

    width: Width
    backend: str
    batch: WholeNumber
    p50_ms: Amount
    p95_ms: Amount


@dataclass(frozen=True)
class Agreement:
    """How much narrower networks agree with the full one, without labels: see `us3l.evaluation.unlabelled`."""

    data: str
    images: WholeNumber
    neighbours: WholeNumber
    percent: dict[Width, Amount]
    """Of the nearest neighbours, by width."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "percent", by_width(self.percent))


@dataclass(frozen=True)
class Profile(StampedRecord):
    """All that is known of a run's widths on one device, which is its name."""

    image_size: WholeNumber
    costs: list[Costs]
    latencies: list[Latency] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=dict)
    """Of the latencies: processor, threads, versions; or the file that they came from."""
    agreement: Agreement | None = None

    def batches(self) -> list[int]:
        """The batch sizes that were timed."""
        return sorted({latency.batch for latency in self.latencies})

    def backends(self) -> list[str]:
        """What ran the networks."""
        return list(dict.fromkeys(latency.backend for latency in self.latencies))

    def rows(self, percent: Mapping[Width, float] | None = None) -> list[dict[str, Any]]:
        """A dictionary for each width on each backend and batch size, with its accuracy if one is given."""
        table: list[dict[str, Any]] = []
        for costs in self.costs:
            width = {"width": costs.width.as_plain()}
            row = asdict(costs) | {"accuracy": (percent or {}).get(costs.width)}
            timed = [asdict(latency) for latency in self.latencies if latency.width == costs.width]
            table += [row | latency | width for latency in timed or [{}]]
        return table


# Files

PROFILES = Store(Profile, "profile_folder", 2, "profile", clean=slug)


def read_profile(run: Run, device: str | None = None, check: bool = True) -> Profile:
    """Return the profile of a device, or the only one there is.

    Args:
        run: the run's folder.
        device: the device's name.
        check: whether one of other weights than the model's is an error.
    """
    devices = PROFILES.names(run)
    if device is None and len(devices) > 1:
        raise UserError(f"{run.folder} was profiled on {', '.join(devices)}: say which counts, `device={devices[0]!r}`")
    if not devices or (device is not None and slug(device) not in devices):
        there = f"only {', '.join(devices)}" if devices else "no profile at all"
        asked = f"no profile of {device!r}, {there}" if device else "no profile"
        raise UserError(f"{run.folder} has {asked}: `us3l.profile({str(run.folder)!r})` makes one")
    return PROFILES.read(run, device or devices[0], check)


def newest_profile(run: Run) -> Profile | None:
    """Return the profile of the device that was profiled last, of whatever weights; None if there is none."""
    profiles = by_date(PROFILES.read_all(run, check=False).values())
    return profiles[-1] if profiles else None


def write_profile(run: Run, profile: Profile, percent: Mapping[Width, float] | None = None) -> list[Path]:
    """Write DEVICE.json and DEVICE.csv; the latter has a row for each width on each backend and batch size.

    Args:
        run: the run's folder.
        profile: what was measured.
        percent: accuracies by width, for the table.

    Returns:
        The files.
    """
    PROFILES.write(run, profile)
    path = PROFILES.file(run, profile.name)
    costs, latency = ([column.name for column in fields(kind)] for kind in (Costs, Latency))
    write_csv(path.with_suffix(".csv"), profile.rows(percent), [*costs, "accuracy", *latency[1:]])
    return [path, path.with_suffix(".csv")]
