"""us3l: pre-train one vision network once, without labels, and run it at any width.

The public names are imported when first used, so that `import us3l` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from us3l.calibration import calibrate as calibrate
    from us3l.commands.compare import compare as compare
    from us3l.commands.detect import detect as detect
    from us3l.commands.doctor import doctor as doctor
    from us3l.commands.embed import embed as embed
    from us3l.commands.evaluate import evaluate as evaluate
    from us3l.commands.export import export as export
    from us3l.commands.find import find as find
    from us3l.commands.pick import pick as pick
    from us3l.commands.predict import predict as predict
    from us3l.commands.pretrain import pretrain as pretrain
    from us3l.commands.profile import profile as profile
    from us3l.commands.publish import publish as publish
    from us3l.commands.report import report as report
    from us3l.commands.reproduce import reproduce as reproduce
    from us3l.commands.search import search as search
    from us3l.costs import Cost as Cost
    from us3l.costs import cost as cost
    from us3l.families import create as create
    from us3l.run import Run as Run
    from us3l.runtime.runtime import Runtime as Runtime
    from us3l.slimmable import Slimmable as Slimmable
    from us3l.storage import load as load
    from us3l.system.errors import UserError as UserError
    from us3l.width import Subnet as Subnet
    from us3l.width import Width as Width

__version__ = "0.1.0"

_HOMES = {
    "Cost": "us3l.costs",
    "Run": "us3l.run",
    "Runtime": "us3l.runtime.runtime",
    "Slimmable": "us3l.slimmable",
    "Subnet": "us3l.width",
    "UserError": "us3l.system.errors",
    "Width": "us3l.width",
    "calibrate": "us3l.calibration",
    "cost": "us3l.costs",
    "create": "us3l.families",
    "load": "us3l.storage",
}
_COMMANDS = (
    "compare", "detect", "doctor", "embed", "evaluate", "export", "find", "pick", "predict",
    "pretrain", "profile", "publish", "report", "reproduce", "search",
)  # fmt: skip
_HOMES |= {name: f"us3l.commands.{name}" for name in _COMMANDS}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'us3l' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
