"""`us3l compare`"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from us3l.commands.parse import RunArguments, parse
from us3l.system.errors import UserError


@dataclass(frozen=True)
class Compare:
    """Compare evaluated runs: accuracy at each width, and the difference from the first run.

    Runs that differ only in their seed share one column, with mean and standard deviation. The command reads what
    `us3l evaluate` wrote, and computes nothing again.

    examples:
      us3l compare runs/us3l runs/us-simsiam
      us3l compare runs/us3l runs/us-simsiam --data cifar10-paper --out table.csv table.json curves.png
      us3l compare runs/us3l runs/us-simsiam --metric knn
    """

    runs: RunArguments
    """Folders of evaluated runs."""
    data: str | None = None
    """The evaluation to compare, by its name in eval/ (default: the one that all runs have; if there are several, that
    of the fast protocol)."""
    metric: Literal["linear", "knn", "finetuned"] | None = None
    """Which accuracy (default: the first of these that all runs have)."""
    out: tuple[Path, ...] = ()
    """Files to write: .csv, .json, .png or .svg."""
    overwrite: bool = False
    """Replace files of the same name."""


def main(arguments: list[str]) -> None:
    command = parse(Compare, "compare", arguments)
    from us3l.reporting.comparison import check_free, write_comparison
    from us3l.reporting.tables import comparison_table
    from us3l.system.console import Console
    from us3l.verbs import compare

    if not command.runs:
        raise UserError("say which runs to compare: us3l compare RUN RUN ...")
    check_free(command.out, command.overwrite)
    comparison = compare(*command.runs, data=command.data, metric=command.metric)
    for path in command.out:
        write_comparison(path, comparison)
    console = Console()
    console.say(comparison.title)
    console.print(comparison_table(comparison))
    for difference in comparison.differences:
        console.say(f"take care: {difference}", style="yellow")
    for path in command.out:
        console.say(f"written: {path}")
