"""Settings of profiling, picking and exporting, without torch so that the command line can read them at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, fields
from typing import TYPE_CHECKING, Literal, TypeAlias

from us3l.run.bundles import Format
from us3l.setting_types import AllWidths, AnyPath, SomeNumbers, SomeWidths
from us3l.system.errors import UserError

Backend = Literal["torch", "onnx", "openvino"]
SpaceName = Literal["own", "shared"]

BUDGETS: dict[str, str] = {
    "latency_ms": "latency, ms",
    "macs": "MACs",
    "params": "parameters",
    "size_mb": "size, MB",
    "memory_mb": "activations, MB",
}
"""What may be limited, and how it is called."""

if TYPE_CHECKING:
    Backends: TypeAlias = Sequence[Backend] | Backend
    Formats: TypeAlias = Sequence[Format] | Format
else:
    Backends = tuple[Backend, ...]
    Formats = tuple[Format, ...]


@dataclass(frozen=True, kw_only=True)
class ProfileSettings:
    """What is timed, and how."""

    widths: AllWidths | None = None
    """Widths to time, or "all" distinct ones (default: the paper's nine, and those that were evaluated)."""
    backends: Backends = ("torch",)
    """What runs the networks."""
    batch_size: SomeNumbers = (1,)
    """Batch sizes to time."""
    threads: int | None = None
    """Threads that compute one batch (default: PyTorch's own number)."""
    repeats: int = 10
    """How often each network takes its turn, with four timed runs each time."""
    size: int | None = None
    """Side of the images in pixels (default: that of training)."""
    data: str | None = None
    """The evaluation whose accuracies to show, by the name of its data (default: the only one)."""
    device: str | None = None
    """A name for the device (default: that of its processor, or of the file given by `device_profile`)."""
    device_profile: AnyPath | None = None
    """A CSV or JSON table of latencies measured elsewhere, instead of measuring here."""
    overwrite: bool = False
    """Replace an earlier profile of that device."""


@dataclass(frozen=True, kw_only=True)
class Budgets:
    """What a network may cost at most."""

    latency_ms: float | None = None
    """At most this many milliseconds."""
    macs: float | None = None
    """At most this many multiply-accumulates per image."""
    params: float | None = None
    """At most this many parameters."""
    size_mb: float | None = None
    """At most this many megabytes of weights, in 32 bits."""
    memory_mb: float | None = None
    """At most this many megabytes of activations at any time."""

    @property
    def limits(self) -> dict[str, float]:
        """The budgets that are given, by their names."""
        values = {field.name: getattr(self, field.name) for field in fields(Budgets)}
        return {name: float(value) for name, value in values.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class PickSettings(Budgets):
    """Budgets, and whose latencies and accuracies count."""

    accuracy_at_least: float | None = None
    """At least this accuracy, in percent."""
    device: str | None = None
    """The device whose latencies count, by the name of its profile (default: the only one)."""
    backend: str | None = None
    """Use only the latencies of this backend (default: the fastest one)."""
    batch_size: int | None = None
    """Batch size that latency and memory are for (default: the smallest that was profiled, or 1)."""
    percentile: Literal["p50", "p95"] = "p95"
    """Which latency must be within the budget."""
    data: str | None = None
    """The evaluation whose accuracies count, by the name of its data (default: the only one)."""

    def __post_init__(self) -> None:
        if self.batch_size is not None and self.batch_size < 1:
            raise UserError(f"batch_size={self.batch_size} must be at least 1")


@dataclass(frozen=True)
class ExportSettings:
    """Which networks are written, and as what."""

    width: SomeWidths
    """One width or several; 0.75-0.75-0.5-0.5 is a sub-network with a width for each stage."""
    format: Formats = ("torch",)
    """One kind of file or several."""
    _: KW_ONLY
    int8: bool = False
    """Quantise to INT8, calibrated on training images (ONNX and OpenVINO)."""
    head: str | None = None
    """Add the classifier that `us3l evaluate` learned: "probe", or the name of the data if there are several;
    "finetuned" takes the network that `--protocol finetune` made ("finetuned:NAME" if there are several);
    "classifier" adds that of a run that was trained with labels, at any width."""
    space: SpaceName = "own"
    """"shared" writes encoders whose embeddings can be compared across widths. See us3l embed."""
    data: str | None = None
    """Images to calibrate and check the files with (default: those that the run was trained on)."""
    out: AnyPath | None = None
    """Folder for the files (default: export/ in the run's folder). Files are added to those of earlier exports."""
    overwrite: bool = False
    """Replace files of the same name."""
