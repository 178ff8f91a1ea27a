"""A run's folder: where everything of one pre-training lies."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from us3l.errors import UserError
from us3l.files import replacing
from us3l.training.config import read_config, write_config
from us3l.training.recipes import Recipe


@dataclass(frozen=True)
class Machine:
    """Where a run is computed."""

    accelerator: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Kind of device."""
    devices: int = 1
    """Number of devices (on a CPU: of processes)."""
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"
    """Arithmetic of the networks; losses are always computed in 32 bits."""
    checkpoint_every: int = 1
    """Epochs between checkpoints."""

    stream: bool = False
    """Read the images while training, as is always done when they do not fit into memory."""

    def __post_init__(self) -> None:
        if self.devices < 1 or self.checkpoint_every < 1:
            raise UserError(f"devices={self.devices} and checkpoint_every={self.checkpoint_every} must be at least 1")


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

    def start(self, config: RunConfig) -> None:
        """Make the folder, which must not hold anything yet."""
        self.refuse_if_used()
        self.checkpoints.mkdir(parents=True)
        write_config(self.config_file, config)

    def refuse_if_used(self) -> None:
        if self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir())):
            raise UserError(f"{self.folder} already exists: choose another --out, or go on with that run by --resume")

    def cut_metrics(self, step: int) -> None:
        """Drop the lines that a resumed run will write again: those from `step` on, and a half-written last one."""
        kept = []
        for line in self.metrics.read_text(encoding="utf-8").splitlines() if self.metrics.exists() else []:
            try:
                record = json.loads(line)
            except ValueError:
                break
            if record["step"] < step:
                kept.append(line + "\n")
        with replacing(self.metrics) as temporary:
            temporary.write_text("".join(kept), encoding="utf-8")


def append_records(path: Path, records: list[dict[str, Any]]) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)
