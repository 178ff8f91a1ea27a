"""What verbs are given: runs, networks, images, settings, one value or several."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar

from us3l.run import Run
from us3l.system.errors import UserError
from us3l.training.settings import check_known
from us3l.width import Width

if TYPE_CHECKING:
    from us3l.slimmable import Slimmable

AnyRun = Run | str | Path
T = TypeVar("T")


def run_of(run: AnyRun) -> Run:
    return run if isinstance(run, Run) else Run(run)


@contextmanager
def borrowed(run: AnyRun | Slimmable) -> Iterator[Run]:
    """A run; for a network in memory, a folder that is gone afterwards."""
    from us3l.slimmable import Slimmable

    if not isinstance(run, Slimmable):
        yield run_of(run)
        return
    with TemporaryDirectory() as folder:
        place = Run(Path(folder) / "network", run.family)
        run.save(place.folder)
        yield place


def check_out(run: AnyRun | Slimmable, out: str | Path | None) -> None:
    """That files have a place: a network in memory has no folder for them."""
    from us3l.slimmable import Slimmable

    if isinstance(run, Slimmable) and out is None:
        raise UserError("say where the files of a network should go: `out='FOLDER'`")


def name_of(data: Any) -> str:
    """What config.yaml calls the images: their path or name, or what a Python program gave instead."""
    if data is None:
        return ""
    if isinstance(data, str | Path):
        return str(data)
    count = f"{len(data):,} images" if hasattr(data, "__len__") else "images"
    return f"<{type(data).__name__} of {count}>"


def built(kind: type[T], settings: dict[str, Any], verb: str) -> T:
    """A dataclass of settings from values by name; an unknown name is a `UserError`."""
    from us3l.run.config import build

    widths = settings.get("widths")
    if isinstance(widths, int | float | Width) or (isinstance(widths, str) and widths != "all"):
        settings = settings | {"widths": (widths,)}
    return build(kind, settings, verb)


def check_names(function: Callable[..., Any], settings: dict[str, Any]) -> None:
    """That a function has settings of these names."""
    known = [name for name in signature(function).parameters if name not in ("run", "runs", "progress", "exported")]
    check_known(settings, known)


def several(values: Sequence[T] | T) -> tuple[T, ...]:
    """One value or several, as several."""
    return tuple(values) if isinstance(values, Sequence) and not isinstance(values, str) else (values,)
