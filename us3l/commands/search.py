"""`us3l search`"""

from __future__ import annotations

from dataclasses import dataclass, field

from us3l.commands.parse import RunArgument, parse, program
from us3l.searching.settings import SearchSettings


@dataclass(frozen=True)
class Search:
    """Find the best sub-network within a budget: a width for each stage, judged without labels.

    Sub-networks are scored by how far they agree with the full network on unlabelled images. The results are printed,
    and written to the run's folder as search/NAME.json, .csv and .png; a search that was stopped goes on.

    examples:
      us3l search runs/photos --macs 5e6
      us3l search runs/photos --data more-photos/ --latency-ms 5 --depth
    """

    run: RunArgument
    """A run's folder, or a model's."""
    data: str | None = None
    """Images to judge by, which need no labels (default: those that the run was trained on)."""
    macs: float | None = None
    """Most multiply-accumulates per image."""
    latency_ms: float | None = None
    """Most milliseconds for one image, on PyTorch here."""
    params: float | None = None
    """Most parameters."""
    size_mb: float | None = None
    """Most megabytes of the weights, in 32 bits."""
    memory_mb: float | None = None
    """Most megabytes of the activations of one image at any time."""
    settings: SearchSettings = field(default_factory=SearchSettings)
    name: str | None = None
    """Name of the result (default: the budgets)."""
    overwrite: bool = False
    """Replace an earlier result of that name and start from the beginning."""


def main(arguments: list[str]) -> None:
    command = parse(Search, "search", arguments)
    from us3l.commands import report
    from us3l.commands.screen import CommandScreen
    from us3l.reporting.search_tables import search_figure, search_table, told
    from us3l.run import Run
    from us3l.run.searches import search_file
    from us3l.verbs import search

    screen = CommandScreen()
    given = {name: value for name, value in vars(command).items() if name not in ("run", "settings")}
    record = search(command.run, **given, **vars(command.settings), progress=screen)
    path = search_file(Run(command.run), record.name)
    search_figure(record, path.with_suffix(".png"))
    screen.console.print(search_table(record))
    screen.say(told(record))
    screen.say(f"written: {path.with_suffix('')}.json, .csv and .png")
    screen.say(f"next: {program()} evaluate {command.run} --widths 1 {record.best:g}")
    report.renew(command.run)
