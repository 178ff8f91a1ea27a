"""What a checkup of a machine found, and its file, which people attach to an issue: nothing in it says whose it is."""

from __future__ import annotations

import getpass
import platform
import re
import socket
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from us3l.system.errors import UserError
from us3l.system.files import read_json, write_json

VERSION = 1
KIND = "us3l doctor"
ABSOLUTE = re.compile(r"(?<![\w.])(?:[A-Za-z]:)?(?:[\\/][^\s\\/:;,'\"()]+)*[\\/]([^\s\\/:;,'\"()]+)")


@dataclass(frozen=True)
class Gpu:
    name: str
    memory: int
    """Bytes."""
    capability: tuple[int, int] | None = None
    """Of CUDA."""


@dataclass(frozen=True)
class Inventory:
    """What there is on a machine."""

    system: str
    processor: str
    cores: int
    """Of the machine."""
    usable_cores: int
    """Those that this process may use: by its affinity, and by the quota of its container."""
    memory: int | None
    """Bytes."""
    available_memory: int | None
    device: str
    """The kind that was looked at: cuda, mps or cpu."""
    gpus: list[Gpu]
    versions: dict[str, str]
    """Of Python, PyTorch and what else us3l needs; of CUDA and cuDNN, if PyTorch was built with them."""
    extras: dict[str, list[str]]
    """What each of us3l's optional extras lacks; nothing, if it is installed."""
    decoders: dict[str, str]
    """Of image formats."""


@dataclass(frozen=True)
class DeviceCheck:
    """Whether the device computes what the CPU computes in double precision, or does what else it should."""

    name: str
    passed: bool
    difference: float | None = None
    """The largest one, relative to the values; None if it was not reached."""
    tolerance: float | None = None
    """The largest one that passes."""
    detail: str = ""
    """What went wrong."""


@dataclass(frozen=True)
class Measured:
    """Speeds in images per second, memory in bytes. None: not measured."""

    recipe: str
    size: int
    """Side of the views."""
    batch: int
    """Images in the batches that were timed."""
    workers: int
    """Processes that read images."""
    steps: dict[str, float] = field(default_factory=dict)
    """Images per second of a training step on images in memory, by precision."""
    loader: float | None = None
    """Images per second that are read, decoded and made into views, while nobody trains."""
    streamed: float | None = None
    """Images per second of training that reads its images."""
    waiting: float | None = None
    """The share of that time in which it waited for images."""
    memory_per_image: float | None = None
    """Peak memory of a step, over the images in its batch: of the device, or of the process on a CPU."""


@dataclass(frozen=True)
class Recommendation:
    """A setting that suits the machine, and why."""

    setting: str
    value: str
    why: str


@dataclass(frozen=True)
class Checkup:
    """All that `us3l doctor` found."""

    us3l: str
    date: str
    seconds: float
    """How long it took."""
    inventory: Inventory
    checks: list[DeviceCheck]
    measured: Measured
    recommendations: list[Recommendation]

    @property
    def passed(self) -> bool:
        """Whether all checks passed."""
        return all(check.passed for check in self.checks)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A dictionary per check."""
        return [asdict(check) for check in self.checks]


def write_checkup(path: Path, checkup: Checkup) -> None:
    """Write the file. One of an earlier checkup is replaced, but no other file.

    Args:
        path: Where.
        checkup: What was found; names of the user and the machine, and folders, are taken out of its texts.
    """
    check_replaceable(path)
    write_json(path, {"kind": KIND, "version": VERSION, **anonymous(asdict(checkup), own_names())})


def check_replaceable(path: Path) -> None:
    """That a path is free, or has the file of an earlier checkup."""
    if path.is_dir() or (path.exists() and read_json(path).get("kind") != KIND):
        raise UserError(f"{path} is something else than a checkup of a machine: choose another `out`")


def read_checkup(path: Path) -> Checkup:
    """What a file holds that `write_checkup` wrote."""
    content = read_json(path)
    if content.get("kind") != KIND:
        raise UserError(f"{path} is not a checkup of a machine: `us3l.doctor(out={str(path)!r})` writes one")
    if content.get("version") != VERSION:
        raise UserError(f"{path} has format {content.get('version')!r:.40}, but this us3l reads {VERSION}")
    try:
        there = content["inventory"]
        gpus = [
            Gpu(**gpu | {"capability": None if gpu["capability"] is None else tuple(gpu["capability"])})
            for gpu in there["gpus"]
        ]
        return Checkup(
            **{name: content[name] for name in ("us3l", "date", "seconds")},
            inventory=Inventory(**{name.name: there[name.name] for name in fields(Inventory)} | {"gpus": gpus}),
            checks=[DeviceCheck(**check) for check in content["checks"]],
            measured=Measured(**content["measured"]),
            recommendations=[Recommendation(**each) for each in content["recommendations"]],
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"cannot read {path} ({error}): run the checkup again") from None


def own_names() -> list[str]:
    """What would tell whose machine it is: the names of the user, of the home folder, and of the machine."""
    found = [Path.home().name, socket.gethostname(), platform.node()]
    with suppress(OSError, KeyError):  # a user without a name
        found.append(getpass.getuser())
    found += [name.partition(".")[0] for name in found]
    return [name for name in found if name]


def anonymous(value: Any, names: Iterable[str]) -> Any:
    """A value without names in its texts, and with paths cut to their last part.

    >>> anonymous({"detail": ["no file /ann/photos/cat.jpg on anns-pc"]}, ["ann", "anns-pc"])
    {'detail': ['no file .../cat.jpg on ...']}
    """
    if isinstance(value, dict):
        return {key: anonymous(inner, names) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [anonymous(inner, names) for inner in value]
    if not isinstance(value, str):
        return value
    text = ABSOLUTE.sub(r".../\1", value)
    for name in sorted(names, key=len, reverse=True):
        text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", "...", text, flags=re.IGNORECASE)
    return text
