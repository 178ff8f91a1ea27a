"""A run's folder: where everything of one pre-training lies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from us3l.errors import UserError
from us3l.files import locked, replacing
from us3l.training.config import read_config, write_config
from us3l.training.recipes import Recipe

LOCK = ".lock"  # the name that `us3l.files.locked` gives it


@dataclass(frozen=True)
class Machine:
    """Where and how a run is computed. All but `stream` may change when a run is resumed."""

    accelerator: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Kind of device."""
    devices: int = 1
    """Number of devices (on a CPU: of processes). Under torchrun it is torchrun that decides."""
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"
    """Arithmetic of the networks; losses are always computed in 32 bits."""
    compile: bool = False
    """Compile the full network and the teacher with torch.compile; sub-networks, of which there are many, stay as they
    are."""
    sync_bn: bool = False
    """Batch norm over the batch of all devices instead of each device's own part."""
    fsdp: bool = False
    """Share parameters, gradients and the optimiser's state out among several devices, which needs less memory."""
    accumulate: int = 1
    """Compute each batch in this many parts, one after the other, which needs less memory."""
    checkpoint_every: int = 1
    """Epochs between checkpoints."""
    skip_bad_steps: int = 0
    """Leave out up to this many steps of the run whose gradients are not finite, instead of stopping."""
    stop_on_collapse: bool = False
    """Stop when a width collapses, instead of warning only."""

    max_bad_images: int = 100
    """Stop when more images than this cannot be read."""
    calibrated_widths: tuple[float, ...] | None = None
    """Widths whose batch-norm statistics are collected at the end, beside the full network's (default: all). The others
    are when `us3l evaluate` first needs them."""
    stream: bool = False
    """Read the images while training, as is always done when they do not fit into memory."""

    def __post_init__(self) -> None:
        for name in ("devices", "accumulate", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise UserError(f"{name}={getattr(self, name)} must be at least 1")
        for name in ("skip_bad_steps", "max_bad_images"):
            if getattr(self, name) < 0:
                raise UserError(f"{name}={getattr(self, name)} must not be negative")
        for width in self.calibrated_widths or ():
            if not 0 < width <= 1:
                raise UserError(f"calibrated_widths: {width:g} is not a width, above 0 and at most 1")
        if self.fsdp and self.precision == "16-mixed":
            raise UserError("fsdp has no scaled gradients: set precision to bf16-mixed or 32-true, or leave out fsdp")
        if self.compile and self.sync_bn:
            raise UserError("compiled networks cannot share their batch norm: leave out compile or sync_bn")


@dataclass(frozen=True)
class RunConfig:
    """All settings of a run, as kept in its config.yaml."""

    data: str = "digits"
    recipe: Recipe = field(default_factory=Recipe)
    machine: Machine = field(default_factory=Machine)


@dataclass(frozen=True)
class Run:
    folder: Path

    @property
    def config_file(self) -> Path:
        return self.folder / "config.yaml"

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def log(self) -> Path:
        return self.folder / "train.log"

    @property
    def damaged(self) -> Path:
        return self.folder / "damaged.txt"

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def model(self) -> Path:
        return self.folder / "model"

    @property
    def finished(self) -> bool:
        return (self.model / "model.json").exists()

    def config(self) -> RunConfig:
        if not self.config_file.is_file():
            raise UserError(f"{self.folder} is not a run: there is no config.yaml in it")
        return read_config(self.config_file, RunConfig)

    @property
    def started(self) -> bool:
        return self.config_file.is_file()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes out of the folder. One that was made for a run that did not start is removed again."""
        with locked(self.folder):
            try:
                yield
            finally:
                if not self.started:
                    with suppress(OSError):
                        (self.folder / LOCK).unlink()
                        self.folder.rmdir()

    def start(self, config: RunConfig) -> None:
        """Make the folder, which must not hold anything yet."""
        self.refuse_if_used()
        write_config(self.config_file, config)
        self.checkpoints.mkdir(exist_ok=True)

    def abandon(self) -> None:
        """Remove what `start` and the first step have written; `held` then removes the folder."""
        for path in (self.config_file, self.log, self.damaged):
            path.unlink(missing_ok=True)
        with suppress(OSError):
            self.checkpoints.rmdir()

    def refuse_if_used(self) -> None:
        if self.folder.exists() and (not self.folder.is_dir() or any(map(counts, self.folder.iterdir()))):
            raise UserError(f"{self.folder} already exists: choose another --out, or go on with that run by --resume")

    def cut_metrics(self, step: int) -> None:
        """Drop the lines that a resumed run will write again: those from `step` on, and a half-written last one."""
        kept = []
        for line in self.metrics.read_text(encoding="utf-8").splitlines() if self.metrics.exists() else []:
            try:
                if json.loads(line)["step"] < step:
                    kept.append(line + "\n")
            except (ValueError, KeyError, TypeError):
                break
        with replacing(self.metrics) as temporary:
            temporary.write_text("".join(kept), encoding="utf-8")


def counts(path: Path) -> bool:
    """Whether a file is more than the traces of a run that was killed before it began."""
    return path.name != LOCK and ".tmp." not in path.name


def append_records(path: Path, records: list[dict[str, Any]]) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)
