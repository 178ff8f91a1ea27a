"""What every width costs and how fast it is on a device: profile/DEVICE.json and DEVICE.csv in a run's folder."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from us3l import __version__
from us3l.run.checks import check_version
from us3l.run.folder import Run
from us3l.run.weights import Weights, check_weights
from us3l.system.errors import UserError
from us3l.system.files import finite, read_json, write_json, write_text
from us3l.width import Width

VERSION = 2  # of version 1 there is one file, profile.json, which names neither its device nor the weights


@dataclass(frozen=True)
class Costs:
    """What does not depend on the device."""

    width: Width
    params: int
    macs: int
    bytes: int
    """Weights and batch-norm statistics as stored in 32 bits."""
    memory: int
    """Peak bytes of the activations for one image: see `us3l.deploy.peak_memory`."""


@dataclass(frozen=True)
class Latency:
    """Milliseconds for one batch."""

    width: Width
    backend: str
    batch: int
    p50_ms: float
    p95_ms: float


@dataclass(frozen=True)
class Agreement:
    """How much narrower networks agree with the full one, without labels: see `us3l.evaluation.unlabelled`."""

    data: str
    images: int
    neighbours: int
    percent: dict[Width, float]
    """Of the nearest neighbours, by width."""


@dataclass(frozen=True)
class Profile:
    """All that is known of a run's widths on one device."""

    image_size: int
    costs: list[Costs]
    latencies: list[Latency] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=dict)
    """Of the latencies: processor, threads, versions; or the file that they came from."""
    device: str = "profile"
    """The name of its files."""
    agreement: Agreement | None = None
    weights: Weights | None = None
    us3l: str | None = None
    torch: str | None = None
    date: str | None = None

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
            known = asdict(costs) | {
                "width": Width(costs.width).as_plain(),
                "accuracy": (percent or {}).get(costs.width),
            }
            timed = [asdict(latency) for latency in self.latencies if latency.width == costs.width]
            table += [known | latency | {"width": known["width"]} for latency in timed or [{}]]
        return table


# Files


def device_name(text: str) -> str:
    """Any text as the name of a device.

    >>> device_name("AMD EPYC 7B13 (64 cores)")
    'AMD-EPYC-7B13-64-cores'
    """
    return re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-.") or "device"


def profile_file(run: Run, device: str) -> Path:
    """Where the profile of a device is kept."""
    return run.profile_folder / f"{device_name(device)}.json"


def list_profiles(run: Run) -> list[str]:
    """The devices that were profiled, by name."""
    return [path.stem for path in sorted(run.profile_folder.glob("*.json")) if not path.name.startswith(".")]


def read_profile(run: Run, device: str | None = None, check: bool = True) -> Profile:
    """The profile of a device, or the only one there is.

    Args:
        run: the run's folder.
        device: the device's name.
        check: whether one of other weights than the model's is an error.
    """
    known = list_profiles(run)
    if device is None and len(known) > 1:
        raise UserError(f"{run.folder} was profiled on {', '.join(known)}: say which counts, `device={known[0]!r}`")
    if not known or (device is not None and device_name(device) not in known):
        there = f"only {', '.join(known)}" if known else "no profile at all"
        asked = f"no profile of {device!r}, {there}" if device else "no profile"
        raise UserError(f"{run.folder} has {asked}: `us3l.profile({str(run.folder)!r})` makes one")
    path = profile_file(run, device or known[0])
    profile = load_profile(path)
    if check and run.model.is_dir():
        check_weights(path, profile.weights, run.weights, "profile again, with `overwrite`")
    return profile


def load_profile(path: Path) -> Profile:
    """The profile in a file, of whatever weights."""
    content = read_json(path)
    check_version(path, content.get("version", 1), (1, VERSION), VERSION)
    try:
        return _profile(path.stem, content)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"cannot read {path} ({error}): profile again, with `overwrite`") from None


def newest_profile(run: Run) -> Profile | None:
    """Of several devices the one that was profiled last; None if there is none."""
    found = [read_profile(run, device, check=False) for device in list_profiles(run)]
    return max(found, key=lambda profile: profile.date or "", default=None)


def write_profile(run: Run, profile: Profile, percent: Mapping[Width, float] | None = None) -> list[Path]:
    """Write DEVICE.json and DEVICE.csv; the latter has a row for each width on each backend and batch size.

    Args:
        run: the run's folder.
        profile: what was found; weights, versions and date are filled in.
        percent: accuracies by width, for the table.

    Returns:
        The files.
    """
    weights = run.weights if run.model.is_dir() else None
    date = f"{datetime.now().astimezone():%FT%T%z}"
    known = replace(profile, weights=weights, us3l=__version__, torch=version("torch"), date=date)
    path = profile_file(run, profile.device)
    content = {"version": VERSION, **asdict(known)}
    if profile.agreement:
        content["agreement"]["percent"] = {str(width): value for width, value in profile.agreement.percent.items()}
    del content["device"]
    write_json(path, content)
    rows = profile.rows(percent)
    columns = [column.name for kind in (Costs, Latency) for column in fields(kind)]
    text = io.StringIO()
    table = csv.DictWriter(text, dict.fromkeys([*columns[:5], "accuracy", *columns[6:]]), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    write_text(path.with_suffix(".csv"), text.getvalue())
    return [path, path.with_suffix(".csv")]


def _profile(device: str, content: dict[str, Any]) -> Profile:
    names = [column.name for column in fields(Costs)]
    texts = {name: content.get(name) for name in ("us3l", "torch", "date")}
    if not all(isinstance(text, str | None) for text in texts.values()):
        raise ValueError(f"versions and date cannot be {texts!r:.80}")
    return Profile(
        int(_amount(content["image_size"])),
        [Costs(**{name: _checked(name, row[name]) for name in names}) for row in content["costs"]],
        [Latency(**{name: _checked(name, value) for name, value in row.items()}) for row in content["latencies"]],
        dict(content["machine"]),
        device,
        _agreement(content.get("agreement")),
        Weights.of(content.get("weights")),
        **texts,
    )


def _agreement(value: dict[str, Any] | None) -> Agreement | None:
    if value is None:
        return None
    percent = {Width.from_plain(width): _amount(number) for width, number in value["percent"].items()}
    return Agreement(_text(value["data"]), int(_amount(value["images"])), int(_amount(value["neighbours"])), percent)


def _checked(name: str, value: Any) -> Any:
    return _text(value) if name == "backend" else Width.from_plain(value) if name == "width" else _amount(value)


def _text(value: Any) -> Any:
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.40} is not a text")
    return value


def _amount(value: Any) -> Any:
    """A number from a file that can be reckoned with."""
    if not (finite(value) and value >= 0):
        raise ValueError(f"{value!r:.40} is not a number of anything")
    return value
