"""`us3l report`: one page about a run or several."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from us3l.commands.command import Command, settings_of, signed_by
from us3l.commands.screen import CommandScreen, as_typed, program
from us3l.setting_types import AnyPath, NamedData, SomeRuns
from us3l.system.streams import one_line

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Unpack

    from us3l.commands.names import ReportNames
    from us3l.setting_types import AnyRun


@dataclass(frozen=True)
class Report(NamedData, Command):
    """Write one page about a run, or several runs side by side: an HTML file that opens anywhere, even offline.

    It shows what has been measured: accuracies after `us3l evaluate`, latencies after `us3l profile`, and training
    curves at any time. `us3l pretrain` and `us3l demo` write it when they end.

    examples:
      us3l report runs/photos
      us3l report runs/us3l runs/us-simsiam --out compared.html
      us3l report runs/photos --no-images --out to-share.html
    """

    runs: SomeRuns
    """Folders of runs, finished or not."""
    _: KW_ONLY
    out: AnyPath | None = None
    """File to write (default, for one run: RUN/report.html, which is replaced)."""
    overwrite: bool = False
    """Replace the file given by `out`."""
    images: bool = True
    """Show some of the images: nearest neighbours and a map. They become part of the page."""
    data: str | None = None
    """Which images to show (default: those of the run)."""


def reported(settings: Report, typed: Callable[[str], str] = str) -> Path:
    """Do the work of `report`; `typed` shows a call in backquotes as one types it."""
    from us3l.reporting.build import build_report
    from us3l.run.unsaved import run_of
    from us3l.system.progress import progress_of

    return build_report(
        [run_of(run) for run in settings.runs],
        settings.out,
        images=settings.images,
        data=settings.data,
        data_root=settings.data_root,
        overwrite=settings.overwrite,
        progress=progress_of(settings.progress),
        typed=typed,
    )


@signed_by(Report, reported)
def report(*runs: AnyRun, **settings: Unpack[ReportNames]) -> Path:
    """Write one page about a run, or several runs side by side: an HTML file that opens anywhere.

    Returns:
        Where the page is.
    """
    return reported(settings_of(Report, (runs,), settings))


def main(settings: Report, screen: CommandScreen) -> None:
    screen.say(f"written: {reported(settings, as_typed)}")


def after(folder: Path) -> None:
    """Write the page of a run that has just ended well; if it cannot be made, a line says so, and that is all."""
    screen = CommandScreen()
    try:
        screen.say(f"the report page is {reported(Report((folder,), progress=screen), as_typed)}")
    except (Exception, KeyboardInterrupt) as error:
        reason = one_line(str(error)) or type(error).__name__
        text = f"no page was made ({reason}). The run is complete; try {program()} report {folder}"
        screen.say(text, style="yellow")


def renew(folder: Path) -> None:
    """Bring the page of a run up to date, if it has one, with what has just been measured."""
    if (folder / "report.html").exists():
        after(folder)
