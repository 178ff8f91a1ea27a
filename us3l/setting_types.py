"""Types of settings: for type checkers what a Python program may give, at run time what a command line gives.

Dataclasses of settings use them, which must not import torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from us3l.width import Width

ANYTHING = object()
"""Marks a setting whose value comes as it is from a Python program; the work checks it."""
PYTHON_ONLY = object()
"""Marks a setting that the command line does not have."""


@dataclass(frozen=True)
class Positional:
    """Marks a setting that is typed without its name."""

    shown: str
    """What the help calls it."""


@dataclass(frozen=True)
class SettingsOf:
    """Marks a dictionary of the settings that are given of some dataclasses, and of those inside them."""

    defaults: tuple[Any, ...]
    """Dataclasses with the values that the help shows."""
    common: tuple[str, ...]
    """Names of the settings that the short help shows."""


def several(values: Any) -> tuple[Any, ...]:
    """Return one value or several as a tuple.

    >>> several(8), several([1, 8]), several("onnx")
    ((8,), (1, 8), ('onnx',))
    """
    return tuple(values) if isinstance(values, Sequence) and not isinstance(values, str) else (values,)


if TYPE_CHECKING:
    from us3l.data.sources import Data as Data
    from us3l.run import Run
    from us3l.slimmable import Slimmable
    from us3l.system.progress import Progress, Told
    from us3l.width import AnyWidth

    AnyRun: TypeAlias = Run | str | Path
    Model: TypeAlias = Run | Slimmable | str | Path
    SomeRuns: TypeAlias = Sequence[Run | str | Path]
    SomeImages: TypeAlias = Data
    AnyPath: TypeAlias = str | Path
    SomePaths: TypeAlias = Sequence[str | Path] | str | Path
    SomeNumbers: TypeAlias = Sequence[int] | int
    SomeShares: TypeAlias = Sequence[float] | float
    Asked: TypeAlias = Progress | Told | None
    OneWidth: TypeAlias = AnyWidth
    SomeWidths: TypeAlias = AnyWidth | Sequence[AnyWidth]
    AllWidths: TypeAlias = Literal["all"] | AnyWidth | Sequence[AnyWidth]
else:
    AnyRun = Annotated[Path, ANYTHING]
    Model = Annotated[AnyRun, Positional("RUN")]
    SomeRuns = Annotated[tuple[Path, ...], Positional("RUN"), ANYTHING]
    Data = Annotated[str, ANYTHING]
    SomeImages = Annotated[Data, Positional("DATA")]
    AnyPath = Path
    SomePaths = tuple[Path, ...]
    SomeNumbers = tuple[int, ...]
    SomeShares = tuple[float, ...]
    Asked = Annotated[Any, PYTHON_ONLY, ANYTHING]
    OneWidth = Width
    SomeWidths = tuple[Width, ...]
    AllWidths = Literal["all"] | tuple[Width, ...]


@dataclass(frozen=True, kw_only=True)
class NamedData:
    """Where data sets are that are opened by their names."""

    data_root: AnyPath | None = None
    """Folder that holds named data sets (default: the environment variable US3L_DATA, else ./data)."""
