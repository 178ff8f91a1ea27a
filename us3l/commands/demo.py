"""`us3l demo`: the whole journey on a built-in data set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from us3l.commands.command import Command, command
from us3l.setting_types import AnyPath

if TYPE_CHECKING:
    from us3l.commands.screen import CommandScreen
    from us3l.run import Run


@dataclass(frozen=True)
class Demo(Command):
    """The whole journey on real handwritten digits: pre-train once without labels, evaluate at nine widths.

    examples:
      us3l demo
      us3l demo --out somewhere
    """

    out: AnyPath | None = None
    """The run's folder (default: runs/demo, or the next free name)."""


@command(Demo)
def demo(settings: Demo) -> Run:
    """Pre-train on digits, and return the run."""
    from pathlib import Path

    from us3l.commands.pretrain import pretrain
    from us3l.system.files import unused_path

    return pretrain("digits", settings.out or unused_path(Path("runs/demo")), progress=settings.progress)


def main(settings: Demo, screen: CommandScreen) -> None:
    from shlex import quote

    from us3l.commands import evaluate, report
    from us3l.commands.screen import program

    run = demo.with_settings(settings)
    evaluate.main(evaluate.Evaluate(run, progress=screen), screen)
    report.after(run.folder)
    us3l, name = program(), quote(str(run.folder))
    screen.say(
        f"""
One network, trained once without labels, ran at nine widths.
Open {run.folder}/report.html in a browser to see it all.

What next:
  {us3l} export {name} --width 0.5
      the network of that width, as a file
  {us3l} evaluate {name} --widths all
      every distinct width
  {us3l} pretrain PHOTOS/ --out runs/mine
      your own folder of images; labels are not needed"""
    )
