"""`us3l.doctor`: does this machine compute correctly, and what does it have."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from us3l.system.devices import Device
from us3l.system.progress import Progress, Told, progress_of

if TYPE_CHECKING:
    from us3l.checkup.examination import Checkup


def doctor(
    out: str | Path | None = None, *, device: Device = "auto", progress: Progress | Told | None = None
) -> Checkup:
    """List what this machine has, and check that its device computes what the CPU computes.

    Args:
        out: a JSON file for the result; that of an earlier checkup is replaced (default: none). It has no names of
            users or machines in it, and of paths only the last part.
        device: "cuda", "mps", "cpu", or "auto" for the best there is.
        progress: "silent" (the default), "lines", "live", or an object of your own.

    Returns:
        The checkup: `passed`, `inventory`, `checks`; `rows` has a dictionary per check.
    """
    from us3l.checkup.examination import check_replaceable, examine, write_checkup

    if out is not None:
        check_replaceable(Path(out))
    checkup = examine(device, progress_of(progress))
    if out is not None:
        write_checkup(Path(out), checkup)
    return checkup
