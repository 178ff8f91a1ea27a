"""`us3l search`: the best sub-network within a budget."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from us3l.commands.command import ModelCommand, command
from us3l.deploy.deployment_settings import Budgets
from us3l.searching.search_settings import SearchSettings
from us3l.setting_types import Data

if TYPE_CHECKING:
    from us3l.commands.screen import CommandScreen
    from us3l.run.searches import SearchRecord


@dataclass(frozen=True)
class Search(SearchSettings, Budgets, ModelCommand):
    """Find the best sub-network within a budget: a width for each stage, judged without labels.

    Sub-networks are scored by how far they agree with the full network on unlabelled images. Latency is measured on
    PyTorch here, and memory counted, for one image. The results are printed, and written to the run's folder as
    search/NAME.json, .csv and .png; a search that was stopped goes on.

    examples:
      us3l search runs/photos --macs 5e6
      us3l search runs/photos --data more-photos/ --latency-ms 5 --depth
    """

    data: Data | None = None
    """Images to judge by, which need no labels (default: those that the run was trained on)."""
    _: KW_ONLY
    name: str | None = None
    """Name of the result, search/NAME.json (default: the budgets)."""
    overwrite: bool = False
    """Replace an earlier result of that name and start from the beginning."""


@command(Search)
def search(settings: Search) -> SearchRecord:
    """Find the best sub-network within a budget, with a width for each stage, without labels.

    A search that was stopped goes on when it is called again.

    Returns:
        The record that was kept: `best` goes wherever a width goes; `rows` has a dictionary per network.
    """
    from us3l.run.unsaved import run_of
    from us3l.searching.searcher import search_run
    from us3l.system.errors import UserError
    from us3l.system.progress import progress_of

    run = run_of(settings.run)
    if not run.saved:
        raise UserError("a network in memory has no place for the results: save it, and give its folder")
    return search_run(
        run,
        settings.limits,
        settings,
        settings.data,
        settings.name,
        settings.overwrite,
        progress_of(settings.progress),
    )


def main(settings: Search, screen: CommandScreen) -> None:
    from us3l.commands import report
    from us3l.commands.screen import program
    from us3l.reporting.search_tables import outcome, search_figure, search_table
    from us3l.run.searches import SEARCHES
    from us3l.run.unsaved import run_of

    record, run = search.with_settings(settings), run_of(settings.run)
    path = SEARCHES.file(run, record.name)
    search_figure(record, path.with_suffix(".png"))
    screen.console.print(search_table(record))
    screen.say(outcome(record))
    screen.say(f"written: {path.with_suffix('')}.json, .csv and .png")
    screen.say(f"next: {program()} evaluate {settings.run} --widths 1 {record.best:g}")
    report.renew(run.folder)
