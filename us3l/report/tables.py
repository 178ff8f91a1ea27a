"""Results as a table for the terminal."""

from collections.abc import Callable, Sequence

from rich import box
from rich.table import Table

from us3l.evaluation.results import WidthResult


def human(count: float) -> str:
    """Three significant digits and a unit.

    >>> human(11_173_962), human(556_651_520), human(950)
    ('11.2 M', '557 M', '950')
    """
    units = iter(("", " k", " M", " G", " T"))
    unit = next(units)
    while count >= 999.5 and unit != " T":  # 999.5 would round to 1000
        count, unit = count / 1000, next(units)
    return f"{count:#.3g}".rstrip(".") + unit if unit else f"{count:.0f}"


def results_table(results: Sequence[WidthResult], title: str | None = None) -> Table:
    """One row a width; each accuracy stands beside its untrained floor and the gain over it.

    Columns without any number are left out. Print it with `rich.console.Console().print(...)`.

    >>> table = results_table([WidthResult(0.5, 2_800_000, 140_000_000, knn=61.25, knn_untrained=30.0)])
    >>> [str(column.header) for column in table.columns]
    ['width', 'params', 'MACs', 'kNN\\n%', 'un-\\ntrained', 'gain']
    """
    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False)
    cells = []
    for header, style, cell in COLUMNS:
        column = [cell(result) for result in results]
        if any(column):
            table.add_column(header, style, justify="right", no_wrap=True)
            cells.append(column)
    for row in zip(*cells, strict=True):
        table.add_row(*row)
    return table


def _percent(accuracy: float | None) -> str:
    return "" if accuracy is None else f"{accuracy:.1f}"


def _gain(accuracy: float | None, floor: float | None) -> str:
    return "" if accuracy is None or floor is None else f"{accuracy - floor:+.1f}"


# The headers are cut so that all nine columns fit into 80 characters.
COLUMNS: list[tuple[str, str, Callable[[WidthResult], str]]] = [
    ("width", "bold", lambda result: f"{result.width:.4g}x"),
    ("params", "", lambda result: human(result.params)),
    ("MACs", "", lambda result: human(result.macs)),
    ("kNN\n%", "bold", lambda result: _percent(result.knn)),
    ("un-\ntrained", "dim", lambda result: _percent(result.knn_untrained)),
    ("gain", "green", lambda result: _gain(result.knn, result.knn_untrained)),
    ("linear\n%", "bold", lambda result: _percent(result.linear)),
    ("un-\ntrained", "dim", lambda result: _percent(result.linear_untrained)),
    ("gain", "green", lambda result: _gain(result.linear, result.linear_untrained)),
]
