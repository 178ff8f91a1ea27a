"""`us3l report`"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from us3l.commands.parse import RunArguments, parse, program
from us3l.commands.screen import CommandScreen, as_typed
from us3l.system.streams import one_line


@dataclass(frozen=True)
class Report:
    """Write one page about a run, or several runs side by side: an HTML file that opens anywhere, even offline.

    It shows what has been measured: accuracies after `us3l evaluate`, latencies after `us3l profile`, and training
    curves at any time. `us3l pretrain` and `us3l demo` write it when they end.

    examples:
      us3l report runs/photos
      us3l report runs/us3l runs/us-simsiam --out compared.html
      us3l report runs/photos --no-images --out to-share.html
    """

    runs: RunArguments
    """Folders of runs, finished or not."""
    out: Path | None = None
    """File to write (default, for one run: RUN/report.html, which is replaced)."""
    overwrite: bool = False
    """Replace the file given by --out."""
    images: bool = True
    """Show some of the images: nearest neighbours and a map. They become part of the page."""
    data: str | None = None
    """Which images to show (default: those of the run)."""
    data_root: Path | None = None
    """Folder that holds named data sets (default: the environment variable US3L_DATA, else ./data)."""


def main(arguments: list[str]) -> None:
    command = parse(Report, "report", arguments)
    from us3l.verbs import report

    settings = {name: value for name, value in vars(command).items() if name != "runs"}
    screen = CommandScreen()
    screen.say(f"written: {report(*command.runs, **settings, progress=screen, typed=as_typed)}")


def after(folder: Path) -> None:
    """The page of a run that has just ended well; if it cannot be made, a line says so, and that is all."""
    from us3l.verbs import report

    screen = CommandScreen()
    try:
        screen.say(f"the report page is {report(folder, progress=screen, typed=as_typed)}")
    except (Exception, KeyboardInterrupt) as error:
        reason = one_line(str(error)) or type(error).__name__
        text = f"no page was made ({reason}). The run is complete; try {program()} report {folder}"
        screen.say(text, style="yellow")


def renew(folder: Path) -> None:
    """Bring the page of a run up to date, if it has one, with what has just been measured."""
    if (folder / "report.html").exists():
        after(folder)
