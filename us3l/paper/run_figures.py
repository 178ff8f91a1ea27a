"""What finished runs found, without the runs: a small file by which machines that share no disk share their results."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from us3l.run.records import Number, WholeNumber, check_version, convert, said
from us3l.system.errors import UserError
from us3l.system.files import locked, read_json, write_json

VERSION = 1
PATIENCE = 60.0  # seconds to wait for another process that adds to the file


@dataclass(frozen=True, order=True)
class FigureKey:
    """What a figure is of."""

    run: str
    """The name, which stands for the settings."""
    data: str
    """What it was tested on, by the name that the tables have for it."""
    metric: str
    width: Number
    """In the run: an individual network is the whole of its own."""


@dataclass(frozen=True)
class RunFigure:
    """One number that a run found."""

    value: Number
    collapsed: bool = False
    knn: Number | None = None
    """Accuracy of nearest neighbours, from the same evaluation."""
    macs: WholeNumber | None = None
    """What the network costs per image."""
    precision: str | None = None
    """Arithmetic of the run, as it was asked for."""


Figures = dict[FigureKey, RunFigure]


@dataclass(frozen=True)
class FiguresFile:
    """What the file declares: a key and its figure in one object each."""

    figures: list[dict[str, Any]]


def read_figures(path: str | Path) -> Figures:
    """Return what `add_figures` wrote, here or elsewhere."""
    path = Path(path)
    content = read_json(path)
    remedy = "leave it out, or take another copy of it"
    check_version(path, content.get("version"), (VERSION,), remedy)
    try:
        lines = convert(content, FiguresFile).figures
        return {convert(line, FigureKey): convert(line, RunFigure) for line in lines}
    except ValueError as error:
        raise UserError(f"{path} is damaged ({said(error)}): {remedy}") from None


def add_figures(path: Path, found: Figures) -> None:
    """Add figures to a file, in place of those that it has of the same keys; others may add to it at the same time."""
    with locked(path.parent, PATIENCE):
        there = read_figures(path) if path.exists() else {}
        write_json(path, {"version": VERSION, "figures": list(_lines((there | found).items()))})


def _lines(figures: Iterable[tuple[FigureKey, RunFigure]]) -> Iterable[dict[str, Any]]:
    for key, figure in sorted(figures, key=lambda both: both[0]):
        yield asdict(key) | {name: value for name, value in asdict(figure).items() if value is not None}
