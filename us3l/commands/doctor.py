"""`us3l doctor`: does this machine compute correctly, and what does it have."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from us3l.commands.command import Command, command
from us3l.setting_types import AnyPath
from us3l.system.devices import Device

if TYPE_CHECKING:
    from us3l.checkup.examination import Checkup
    from us3l.commands.screen import CommandScreen


@dataclass(frozen=True)
class Doctor(Command):
    """Check that this machine computes correctly, and list what it has. It takes a few seconds.

    A training step and an evaluation on the device are compared with the CPU in double precision. The exit code is 1 if
    a check fails. The result goes to a file that you can attach to an issue: it has no names of users or machines in
    it, and of paths only the last part.

    examples:
      us3l doctor
      us3l doctor --device cpu --out cpu.json
    """

    out: AnyPath | None = None
    """The file; that of an earlier checkup is replaced (default: us3l-doctor.json; from Python, none)."""
    _: KW_ONLY
    device: Device = "auto"
    """Device to check; auto is a CUDA device, else Apple's MPS, else the CPU."""


@command(Doctor)
def doctor(settings: Doctor) -> Checkup:
    """List what this machine has, and check that its device computes what the CPU computes.

    Returns:
        The checkup: `passed`, `inventory`, `checks`; `rows` has a dictionary per check.
    """
    from us3l.checkup.examination import check_replaceable, examine, write_checkup
    from us3l.system.progress import progress_of

    if settings.out is not None:
        check_replaceable(Path(settings.out))
    checkup = examine(settings.device, progress_of(settings.progress))
    if settings.out is not None:
        write_checkup(Path(settings.out), checkup)
    return checkup


def main(settings: Doctor, screen: CommandScreen) -> int:
    settings = replace(settings, out=settings.out or Path("us3l-doctor.json"))
    checkup = doctor.with_settings(settings)
    for line in lines(checkup):
        screen.say(line)
    screen.say(f"\nwritten: {settings.out}")
    return 0 if checkup.passed else 1


def lines(checkup: Checkup) -> list[str]:
    """Return the checkup as lines of text."""
    there = checkup.inventory
    installed = [name for name, missing in there.extras.items() if not missing]
    lacking = [f"{name} (needs {', '.join(missing)})" for name, missing in there.extras.items() if missing]
    text = [
        f"system      {there.system}",
        f"processor   {there.processor}: {there.usable_cores} of {there.cores} cores usable",
        f"memory      {there.memory / 2**30:.1f} GiB, {there.available_memory / 2**30:.1f} GiB available",
        *(f"GPU         {gpu.name}, {gpu.memory / 2**30:.1f} GiB, capability {gpu.capability}" for gpu in there.gpus),
        f"device      {there.device}",
        f"versions    {', '.join(f'{name} {number}' for name, number in there.versions.items())}",
        f"extras      {', '.join(installed) or 'none'}; not installed: {', '.join(lacking) or 'none'}",
        f"decoders    {', '.join(f'{kind}: {by}' for kind, by in there.decoders.items())}",
        "",
        "checks against the CPU in double precision",
    ]
    for check in checkup.checks:
        within = "" if check.difference is None else f"  differs by {check.difference:.1e}, {check.tolerance:g} passes"
        text.append(
            f"  {'ok' if check.passed else 'FAILED':<8}{check.name}{within if check.passed else f': {check.detail}'}"
        )
    return text
