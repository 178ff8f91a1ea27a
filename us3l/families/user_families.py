"""Families of the user's own, by the name that the user gives: MODULE:NAME. Files never name code to run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from us3l.system.errors import UserError, did_you_mean, told

if TYPE_CHECKING:
    from torch import nn

OwnFamily = Callable[[Any], "nn.Module"]
_given: OwnFamily | None = None  # of the process: threads load models, too


def import_family(name: str) -> OwnFamily:
    """The family of a name, as Python finds it; also in the working folder.

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
        found: Any = import_module(module)
    except ModuleNotFoundError as error:
        if error.name and (module == error.name or module.startswith(f"{error.name}.")):
            raise UserError(f"{name}: there is no module {error.name!r}, here or where Python looks for it") from None
        raise UserError(f"{name}: the module {module!r} needs {error.name!r}, which is not installed") from None
    except Exception as error:  # the user's own code
        raise UserError(f"{name}: the module {module!r} cannot be imported ({told(error)})") from None
    finally:
        sys.path.remove("")
    for part in inner.split("."):
        if not hasattr(found, part):
            raise UserError(f"{name}: {module!r} has no {inner!r}: {did_you_mean(part, dir(found))}")
        found = getattr(found, part)
    if isinstance(found, type):
        try:
            found = found()
        except Exception as error:  # the user's own code
            raise UserError(f"{name}: the class must be made without arguments, but {told(error)}") from error
    if not callable(found) or callable(getattr(found, "state_dict", None)):  # a network can be called, too
        raise UserError(f"{name} is of type {type(found).__name__}: a family is a function from a width to a network")
    return found


@contextmanager
def given_family(family: OwnFamily | None) -> Iterator[None]:
    """Let models that are networks of the user's own be read with a family, where nothing nearer says one."""
    global _given
    before, _given = _given, family
    try:
        yield
    finally:
        _given = before


def current_family() -> OwnFamily | None:
    """What `given_family` gave."""
    return _given
