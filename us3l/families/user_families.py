"""Families of the user's own, by the name that the user gives: MODULE:NAME. Files never name code to run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from us3l.system.errors import UserError, brief, did_you_mean

if TYPE_CHECKING:
    from torch import nn

OwnFamily = Callable[[Any], "nn.Module"]
_current: OwnFamily | None = None  # of the process: threads load models, too


def import_family(name: str) -> OwnFamily:
    """Return the family of a name, as Python finds it; also in the working folder.

    Args:
        name: Of a module, a colon, and a function or an object in it, such as "my_package.networks:family".

    Raises:
        UserError: There is no such module or name, the module fails, or what it names cannot be called.
    """
    module, _, inner = name.partition(":")
    if not module or not inner:
        raise UserError(f"{name!r} does not name a family: write MODULE:NAME, such as my_networks:family")
    sys.path.insert(0, "")
    try:
        family: Any = import_module(module)
    except ModuleNotFoundError as error:
        if error.name and (module == error.name or module.startswith(f"{error.name}.")):
            raise UserError(f"{name}: there is no module {error.name!r}, here or where Python looks for it") from None
        raise UserError(f"{name}: the module {module!r} needs {error.name!r}, which is not installed") from None
    except Exception as error:  # the user's own code
        raise UserError(f"{name}: the module {module!r} cannot be imported ({brief(error)})") from None
    finally:
        sys.path.remove("")
    for part in inner.split("."):
        if not hasattr(family, part):
            raise UserError(f"{name}: {module!r} has no {inner!r}: {did_you_mean(part, dir(family))}")
        family = getattr(family, part)
    if isinstance(family, type):
        try:
            family = family()
        except Exception as error:  # the user's own code
            raise UserError(f"{name}: the class must be made without arguments, but {brief(error)}") from error
    if not callable(family) or callable(getattr(family, "state_dict", None)):  # a network can be called, too
        raise UserError(f"{name} is of type {type(family).__name__}: a family is a function from a width to a network")
    return family


@contextmanager
def using_family(family: OwnFamily | None) -> Iterator[None]:
    """Let models that are networks of the user's own be read with a family, where nothing nearer says one."""
    global _current
    before, _current = _current, family
    try:
        yield
    finally:
        _current = before


def current_family() -> OwnFamily | None:
    """Return the family of `using_family`, None outside of it."""
    return _current
