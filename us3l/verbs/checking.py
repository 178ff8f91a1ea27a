"""`us3l.doctor`: is this machine fit, and which settings suit it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from us3l.system.devices import Device
from us3l.system.progress import Progress, Told, progress_of

if TYPE_CHECKING:
    from us3l.checkup.findings import Checkup


def doctor(
    out: str | Path | None = None,
    *,
    device: Device = "auto",
    recipe: str | None = None,
    seconds: float = 5.0,
    progress: Progress | Told | None = None,
) -> Checkup:
    """Look at this machine, check its device against the CPU, measure it, and recommend settings.

    Args:
        out: a file for the findings, in JSON; that of an earlier checkup is replaced (default: none). It has no names
            of users or machines in it, and of paths the last part only.
        device: "cuda", "mps", "cpu", or "auto" for the best there is.
        recipe: whose steps are timed (default: "mini" on a CPU, "imagenet-resnet18" elsewhere).
        seconds: time for each of the measurements, about.
        progress: "silent" (the default), "lines", "live", or an object of your own.

    Returns:
        The findings: `passed`, `inventory`, `checks`, `measured`, `recommendations`; `rows` has a dictionary per check.
    """
    from us3l.checkup.examining import examine
    from us3l.checkup.findings import check_replaceable, write_checkup

    if out is not None:
        check_replaceable(Path(out))
    found = examine(device, recipe, seconds, progress_of(progress))
    if out is not None:
        write_checkup(Path(out), found)
    return found
