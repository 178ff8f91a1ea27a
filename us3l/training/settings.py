"""Settings by their bare names, as the command line has them: `epochs`, `lr`, `min_width`, `devices`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar, get_type_hints

from us3l.run.config import build
from us3l.system.errors import UserError, did_you_mean
from us3l.training.run_config import RunConfig

T = TypeVar("T")


def changed(config: RunConfig, **settings: Any) -> RunConfig:
    """Return a run's settings with some of them changed.

    A `base_loss` brings the learning rate, weight decay and epochs that it needs, unless these are given too.

    Args:
        config: the settings to begin with.
        settings: new values by their names; an unknown name is a `UserError`.

    >>> changed(RunConfig(), epochs=3, min_width=0.5).recipe.network.min_width
    0.5
    """
    check_known(settings, set(names(config)) - {"data", "data_path"})
    if "base_loss" in settings:
        config = replace(config, recipe=config.recipe.tuned_for(settings["base_loss"]))
    return _replaced(config, settings)


def with_settings(value: T, settings: Mapping[str, Any]) -> T:
    """Return a dataclass of settings, and of more such dataclasses, with some changed by their bare names."""
    check_known(settings, set(names(value)))
    return _replaced(value, settings)


def check_known(settings: Iterable[str], allowed: Collection[str]) -> None:
    for name in settings:
        if name not in allowed:
            raise UserError(f"unknown setting {name!r}: {did_you_mean(name, sorted(allowed))}")


def names(value: Any) -> Iterator[str]:
    """Return the names of all settings in a dataclass and in those inside it."""
    return (name for name, _ in values(value))


def values(value: Any) -> Iterator[tuple[str, Any]]:
    """Return the same with their values."""
    for field in fields(value):
        inner = getattr(value, field.name)
        yield from values(inner) if is_dataclass(inner) else ((field.name, inner),)


def _replaced(value: T, settings: Mapping[str, Any]) -> T:
    hints = get_type_hints(type(value))
    changes: dict[str, Any] = {}
    for field in fields(value):  # type: ignore[arg-type]
        inner = getattr(value, field.name)
        if is_dataclass(inner):
            changes[field.name] = _replaced(inner, settings)
        elif field.name in settings:
            changes[field.name] = build(hints[field.name], settings[field.name], field.name)
    return replace(value, **changes)  # type: ignore[type-var]
