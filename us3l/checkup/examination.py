"""Examine a machine, and write the file that people attach to an issue: nothing in it says whose machine it is."""

from __future__ import annotations

import getpass
import platform
import re
import socket
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from us3l import __version__
from us3l.checkup.device_checks import DeviceCheck, planned_checks
from us3l.checkup.inventory import Inventory, take_inventory
from us3l.system.devices import Device, choose_device, precision_here
from us3l.system.errors import UserError
from us3l.system.files import read_json, write_json
from us3l.system.progress import SILENT, Progress

VERSION = 2
KIND = "us3l doctor"
ABSOLUTE = re.compile(r"(?<![\w.])(?:[A-Za-z]:)?(?:[\\/][^\s\\/:;,'\"()]+)*[\\/]([^\s\\/:;,'\"()]+)")


@dataclass(frozen=True)
class Checkup:
    """The result of `us3l doctor`."""

    us3l: str
    date: str
    inventory: Inventory
    checks: list[DeviceCheck]

    @property
    def passed(self) -> bool:
        """Whether all checks passed."""
        return all(check.passed for check in self.checks)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A dictionary per check."""
        return [asdict(check) for check in self.checks]


def examine(device: Device = "auto", progress: Progress = SILENT) -> Checkup:
    """List what this machine has, and compare its device with the CPU.

    Args:
        device: The device to check.
        progress: Called with the number of finished checks.
    """
    chosen = choose_device(device)
    plan = planned_checks(chosen, precision_here(device))
    checks = []
    with progress.counting("checking", len(plan)) as count:
        for check in plan:
            checks.append(check.run())
            count.more(1)
    return Checkup(__version__, f"{datetime.now().astimezone():%F}", take_inventory(chosen), checks)


def write_checkup(path: Path, checkup: Checkup) -> None:
    """Write the file without names of the user or the machine, and without folders."""
    check_replaceable(path)
    write_json(path, {"kind": KIND, "version": VERSION, **anonymous(asdict(checkup), personal_names())})


def check_replaceable(path: Path) -> None:
    """Raise unless a path is free or has the file of an earlier checkup."""
    if path.is_dir() or (path.exists() and read_json(path).get("kind") != KIND):
        raise UserError(f"{path} is not the file of an earlier checkup: choose another `out`")


def personal_names() -> list[str]:
    """Return the names of the user, of the home folder and of the machine."""
    names = [Path.home().name, socket.gethostname(), platform.node()]
    with suppress(OSError, KeyError):  # a user without a name
        names.append(getpass.getuser())
    names += [name.partition(".")[0] for name in names]
    return [name for name in names if name]


def anonymous(value: Any, names: Iterable[str]) -> Any:
    """Return a value without names in its texts, and with paths cut to their last part.

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
