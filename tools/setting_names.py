"""Write us3l/commands/names.py: the settings of commands whose functions take `**settings`, for type checkers.

Run `python tools/setting_names.py` after a setting is added to a recipe or to the machine; a test compares the file.
"""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Iterator
from dataclasses import Field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # this checkout, not one that is installed

from us3l.commands.compare import Compare  # noqa: E402
from us3l.commands.pretrain import Pretrain  # noqa: E402
from us3l.commands.report import Report  # noqa: E402
from us3l.training.run_config import RunConfig  # noqa: E402

PATH = ROOT / "us3l" / "commands" / "names.py"
HEADER = '''"""Settings of functions with `**settings`, for type checkers: made by tools/setting_names.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypedDict

from us3l.objective.loss_table import BaseLoss, DistillLoss
from us3l.setting_types import AnyPath, Asked, SomePaths
from us3l.training.initial import Init
from us3l.training.run_config import RunConfig
'''
WIDER = {"config": "AnyPath | RunConfig | None", "init": "Init | None", "teacher": "Init | None",
         "network": "Callable[[Any], Any] | None"}  # fmt: skip
"""Settings that take more from Python than their dataclasses say."""


ALIASES = {"AnyPath", "Asked", "BaseLoss", "DistillLoss", "SomePaths"}  # of the header


def source() -> str:
    """Return the text of the file."""
    run = [pair for pair in settings_in(RunConfig()) if pair[1].name not in ("data", "data_path", "init_sha256")]
    classes: dict[str, list[tuple[type, Field[Any]]]] = {
        "CompareNames": [(Compare, field) for field in fields(Compare) if field.name != "runs"],
        "ReportNames": [(Report, field) for field in fields(Report) if field.name != "runs"],
        "PretrainNames": [
            *((Pretrain, field) for field in fields(Pretrain) if field.name not in ("data", "out", "settings")),
            *run,
        ],
    }
    text = HEADER
    for name, pairs in classes.items():
        lines = "\n".join(f"    {field.name}: {written(kind, field)}" for kind, field in pairs)
        text += f"\n\nclass {name}(TypedDict, total=False):\n{lines}\n"
    return text


def settings_in(value: Any) -> Iterator[tuple[type, Field[Any]]]:
    """Give the settings of a dataclass, and of those inside it."""
    for field in fields(value):
        inner = getattr(value, field.name)
        if is_dataclass(inner):
            yield from settings_in(inner)
        else:
            yield type(value), field


def written(kind: type, field: Field[Any]) -> str:
    """Return the type of a setting as source: as it is declared, or else spelled out."""
    if field.name in WIDER:
        return WIDER[field.name]
    words = set(re.findall(r"\w+", str(field.type)))
    return str(field.type) if words & ALIASES else spelled(get_type_hints(kind)[field.name])


def spelled(kind: Any) -> str:
    """Return a type without aliases.

    >>> spelled(tuple[float, ...] | None)
    'tuple[float, ...] | None'
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return " | ".join(map(spelled, arguments))
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, arguments))}]".replace("'", '"')
    if origin is not None:
        inner = ", ".join("..." if argument is ... else spelled(argument) for argument in arguments)
        return f"{origin.__name__}[{inner}]"
    return "None" if kind is types.NoneType else str(kind.__name__)


if __name__ == "__main__":
    PATH.write_text(source(), encoding="utf-8")
