"""All settings of a run: what is trained, on what data, how it is computed; and how to change them by bare names."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, get_type_hints

from us3l.run import Run
from us3l.run.config import build, read_plain
from us3l.run.identity import data_path, data_source
from us3l.system.devices import AskedPrecision, Device, precision_here
from us3l.system.errors import UserError, did_you_mean
from us3l.training.recipes import Recipe

T = TypeVar("T")
LoggerName = Literal["tensorboard", "wandb", "mlflow"]


@dataclass(frozen=True)
class Machine:
    """Where and how a run is computed. All but `stream` and `memory_gib` may change when a run is resumed."""

    accelerator: Device = "auto"
    """Kind of device."""
    devices: int = 1
    """Number of devices (on a CPU: of processes). Under torchrun, torchrun decides."""
    precision: AskedPrecision = "auto"
    """Arithmetic of the networks; losses are always computed in 32 bits. "auto" takes bf16-mixed on GPUs that have it,
    16-mixed on older ones with tensor cores, and 32-true elsewhere."""
    compile: bool = False
    """Compile the full network and the teacher with torch.compile; sub-networks, of which there are many, stay as they
    are."""
    sync_bn: bool = False
    """Batch norm over the batch of all devices instead of each device's own part."""
    accumulate: int = 1
    """Compute each batch in this many parts, one after the other, to save memory."""
    checkpoint_every: int = 1
    """Epochs between checkpoints."""
    skip_bad_steps: int = 0
    """Leave out up to this many steps of the run whose gradients are not finite, instead of stopping."""
    stop_on_collapse: bool = False
    """Stop when a width collapses, instead of only warning."""

    loggers: tuple[LoggerName, ...] = ()
    """Also show losses and gauges in TensorBoard, Weights & Biases (offline unless WANDB_MODE says otherwise) or
    MLflow."""
    max_bad_images: int = 100
    """Stop when more images than this cannot be read."""
    calibrated_widths: tuple[float, ...] | None = None
    """Widths whose batch-norm statistics are collected at the end, besides the full network's (default: all). Those of
    other widths are collected when evaluation, profiling or export first need them."""
    stream: bool = False
    """Read the images while training, as is always done when they do not fit into memory."""
    memory_gib: float = 8.0
    """Memory for decoded images; if they need more, they are read while training."""

    def __post_init__(self) -> None:
        for name in ("devices", "accumulate", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise UserError(f"{name}={getattr(self, name)} must be at least 1")
        if not 0 < self.memory_gib < math.inf:
            raise UserError(f"memory_gib={self.memory_gib} must be above 0")
        for name in ("skip_bad_steps", "max_bad_images"):
            if getattr(self, name) < 0:
                raise UserError(f"{name}={getattr(self, name)} must not be negative")
        for width in self.calibrated_widths or ():
            if not 0 < width <= 1:
                raise UserError(f"calibrated_widths: {width:g} is not a width, above 0 and at most 1")
        if self.compile and self.sync_bn:
            raise UserError("compiled networks cannot share their batch norm: leave out `compile` or `sync_bn`")

    def resolved(self) -> Machine:
        """Return these settings with what depends on the device: the precision."""
        if self.precision != "auto":
            return self
        return replace(self, precision=precision_here(self.accelerator))


@dataclass(frozen=True)
class RunConfig:
    """All settings of a run, as kept in its config.yaml."""

    data: str = "digits"
    """The images, as they were named."""
    recipe: Recipe = field(default_factory=Recipe)
    machine: Machine = field(default_factory=Machine)
    data_path: str = ""
    """Where the images were when the run began, if they were named by a path, which may be a relative one."""

    init_sha256: str = ""
    """Of the weights that the run began with, if it was given any: see `us3l.tensors.digest`."""

    @property
    def source(self) -> str:
        """How to name the images now."""
        return data_source(self.data, self.data_path)

    def resolved(self) -> RunConfig:
        """Return the same with what depends on other settings and on this machine: see `Recipe` and `Machine`."""
        return replace(self, recipe=self.recipe.resolved(), machine=self.machine.resolved())

    def located(self) -> RunConfig:
        """Return the same, with the place of the images as seen from the present working folder."""
        return replace(self, data_path=data_path(self.data))


RETIRED: dict[str, dict[str, tuple[Any, ...]]] = {
    "objective": {
        "own": (0.0,),
        "relations": (0.0,),
        "wider_teaches": (False,),
        "sub_weight": (1.0,),
        "sub_size": (None,),
        "sub_momentum": (None,),
        "lowest_from": (None,),
        "product": ("student", "both", "teacher"),
    },
    "machine": {"fsdp": (False, True), "keep": ("crops",)},
}
"""Settings that were removed, by the section of config.yaml: the values at which a file of earlier versions means what
it would mean without them."""
RENAMED = {("distill_loss", "own"): "none"}
"""Values of settings that had another name in earlier versions."""


def config_of(run: Run) -> RunConfig:
    """Return the settings that a run was started with."""
    run.check_started()
    return read_run_config(run.config_file)


def read_run_config(path: Path) -> RunConfig:
    """Return the settings in a config.yaml, of this version or an earlier one."""
    return build_config(read_plain(path), str(path))


def build_config(plain: Any, where: str) -> RunConfig:
    """Return a run's settings from the plain values of its config.yaml, without those that were removed since.

    Raises:
        UserError: A setting is unknown, has a value of a wrong type, or was removed and is in use.
    """
    return build(RunConfig, _without_retired(plain, where), where)


def _without_retired(plain: Any, where: str, section: str = "") -> Any:
    if not isinstance(plain, dict):
        return plain
    kept = {}
    for name, value in plain.items():
        meaningless = RETIRED.get(section, {}).get(name)
        if meaningless is None:
            new = RENAMED.get((name, value), value) if isinstance(value, str) else value
            kept[name] = _without_retired(new, where, name)
        elif value not in meaningless:
            raise UserError(
                f"{where}: {name}={value!r:.80} was removed from us3l: its model can still be used, but to train by "
                "these settings takes version 0.1.0"
            )
    return kept


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
    for each in fields(value):
        inner = getattr(value, each.name)
        yield from values(inner) if is_dataclass(inner) else ((each.name, inner),)


def _replaced(value: T, settings: Mapping[str, Any]) -> T:
    hints = get_type_hints(type(value))
    changes: dict[str, Any] = {}
    for each in fields(value):  # type: ignore[arg-type]
        inner = getattr(value, each.name)
        if is_dataclass(inner):
            changes[each.name] = _replaced(inner, settings)
        elif each.name in settings:
            changes[each.name] = build(hints[each.name], settings[each.name], each.name)
    return replace(value, **changes)  # type: ignore[type-var]
