"""What finished runs found, without the runs: a small file by which machines that share no disk share their results."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from us3l.run.checks import check_version, demand
from us3l.system.errors import UserError
from us3l.system.files import finite, locked, read_json, write_json

VERSION = 1
PATIENCE = 60.0  # seconds to wait for another process that adds to the file


class FigureKey(NamedTuple):
    """What a figure is of."""

    run: str
    """The name, which stands for the settings."""
    data: str
    """What it was tested on, by the name that the tables have for it."""
    metric: str
    width: float
    """In the run: an individual network is the whole of its own."""


@dataclass(frozen=True)
class RunFigure:
    """One number that a run found."""

    value: float
    collapsed: bool = False
    knn: float | None = None
    """Accuracy of nearest neighbours, from the same evaluation."""
    macs: int | None = None
    """What the network costs per image."""
    precision: str | None = None
    """Arithmetic of the run, as it was asked for."""

    def __post_init__(self) -> None:
        for name in ("value", "knn", "macs"):
            number = getattr(self, name)
            demand(finite(number) or (number is None and name != "value"), name, number)
        demand(isinstance(self.collapsed, bool), "collapsed", self.collapsed)
        demand(self.precision is None or isinstance(self.precision, str), "precision", self.precision)


Figures = dict[FigureKey, RunFigure]


def read_figures(path: str | Path) -> Figures:
    """What `add_figures` wrote, here or elsewhere."""
    path = Path(path)
    content = read_json(path)
    check_version(path, content.get("version"), (VERSION,), VERSION)
    try:
        return dict(_read(line) for line in content["figures"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} is damaged ({error}): leave it out, or take another copy of it") from None


def _read(line: dict[str, Any]) -> tuple[FigureKey, RunFigure]:
    key = FigureKey(*(line.pop(name) for name in FigureKey._fields))
    for name in key[:-1]:
        demand(isinstance(name, str), "a name", name)
    demand(finite(key.width), "width", key.width)
    return key, RunFigure(**line)


def add_figures(path: Path, found: Figures) -> None:
    """Add figures to a file, in place of those that it has of the same keys; others may add to it at the same time."""
    with locked(path.parent, PATIENCE):
        known = read_figures(path) if path.exists() else {}
        write_json(path, {"version": VERSION, "figures": list(_lines((known | found).items()))})


def _lines(figures: Iterable[tuple[FigureKey, RunFigure]]) -> Iterable[dict[str, Any]]:
    for key, figure in sorted(figures, key=lambda both: both[0]):
        yield key._asdict() | {name: value for name, value in asdict(figure).items() if value is not None}
