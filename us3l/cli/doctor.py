"""`us3l doctor`"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from us3l.cli.parse import parse
from us3l.system.devices import Device

if TYPE_CHECKING:
    from us3l.checkup.findings import Checkup


@dataclass(frozen=True)
class Doctor:
    """Check and measure this machine, and say which settings suit it. It takes about a minute.

    A training step and an evaluation on the device are compared with the CPU in double precision. Then steps, and the
    reading of JPEGs that are made for it, are timed. The exit code is 1 if a check fails. All that was found goes to a
    file that you can attach to an issue: it has no names of users or machines in it, and of paths only the last part.

    examples:
      us3l doctor
      us3l doctor --recipe imagenet-resnet18 --seconds 10
      us3l doctor --device cpu --out cpu.json
    """

    out: Path = Path("us3l-doctor.json")
    """The file; that of an earlier checkup is replaced."""
    device: Annotated[Device, tyro.conf.arg(metavar="DEV")] = "auto"
    """Which device: cpu, cuda or mps; auto is a CUDA device, else Apple's MPS, else the CPU."""
    recipe: str | None = None
    """Whose steps are timed (default: mini on a CPU, imagenet-resnet18 elsewhere)."""
    seconds: Annotated[float, tyro.conf.arg(metavar="S")] = 5.0
    """Time for each of the measurements, about."""


def main(arguments: list[str]) -> int:
    command = parse(Doctor, "doctor", arguments)
    from us3l.cli.screen import CommandScreen
    from us3l.verbs import doctor

    screen = CommandScreen()
    screen.say("checking this machine, which takes about a minute")
    found = doctor(**vars(command), progress=screen)
    for line in lines(found):
        screen.say(line)
    screen.say(f"\nwritten: {command.out}")
    return 0 if found.passed else 1


def lines(found: Checkup) -> list[str]:
    """What was found, for people."""
    from us3l.checkup.summary import inventory_lines, speed_lines

    told = [*inventory_lines(found.inventory), "", "checks against the CPU in double precision"]
    for check in found.checks:
        within = "" if check.difference is None else f"  differs by {check.difference:.1e}, {check.tolerance:g} passes"
        told.append(
            f"  {'ok' if check.passed else 'FAILED':<8}{check.name}{within if check.passed else f': {check.detail}'}"
        )
    told += ["", *speed_lines(found.measured), "", "recommended"]
    for each in found.recommendations:
        typed = f"{each.setting}={each.value}" if each.setting.isupper() else f"--{each.setting} {each.value}"
        told.append(f"  {typed.replace('_', '-') if typed.startswith('--') else typed}: {each.why}")
    return told
