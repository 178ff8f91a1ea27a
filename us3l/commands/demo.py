"""`us3l demo`"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from us3l.commands.parse import parse, program


@dataclass(frozen=True)
class Demo:
    """The whole journey on real handwritten digits: pre-train once without labels, evaluate at nine widths.

    examples:
      us3l demo
      us3l demo --out somewhere
    """

    out: Path | None = None
    """The run's folder (default: runs/demo, or the next free name)."""


def main(arguments: list[str]) -> None:
    command = parse(Demo, "demo", arguments)
    from us3l.commands import evaluate, report
    from us3l.commands.screen import CommandScreen
    from us3l.system.files import unused_path
    from us3l.verbs import pretrain

    screen = CommandScreen()
    run = pretrain("digits", command.out or unused_path(Path("runs/demo")), progress=screen)
    evaluate.main([str(run.folder)])
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
