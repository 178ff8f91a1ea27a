"""Settings of embedding, finding and predicting, without torch so that the command line can read them at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from us3l.deploy.deployment_settings import Backend, SpaceName
from us3l.setting_types import AnyPath, Data, NamedData, OneWidth
from us3l.system.devices import Device
from us3l.system.errors import UserError

Engine = Literal["auto", "numpy", "faiss"]
Part = Literal["train", "test", "learn", "validation"]

if TYPE_CHECKING:
    TwoParts: TypeAlias = Sequence[Part]
else:
    TwoParts = tuple[Part, ...]


@dataclass(frozen=True, kw_only=True)
class CollectionSettings(NamedData):
    """Which images go through which network, and what computes it."""

    width: OneWidth | None = None
    """Width of the network (default: the widest there is)."""
    latency_ms: float | None = None
    """Take the best width within this many milliseconds per image, by us3l profile; a bundle is timed now."""
    split: Literal["every", "train", "test"] = "every"
    """Which images, where there is a training and a test part."""
    backend: Literal["auto"] | Backend = "auto"
    """What runs the network (auto: PyTorch for runs; for bundles what they hold)."""
    device: Device = "auto"
    """Device that PyTorch computes on."""
    threads: int | None = None
    """Threads that compute (default: PyTorch's own number)."""
    int8: bool | None = None
    """Which files of a bundle that has both kinds."""
    overwrite: bool = False
    """Replace files of these names, and start again."""

    def __post_init__(self) -> None:
        if self.width is not None and self.latency_ms is not None:
            raise UserError("give `width` or `latency_ms`, not both")


@dataclass(frozen=True, kw_only=True)
class EmbeddingSettings(CollectionSettings):
    """How images are embedded."""

    out: AnyPath | None = None
    """The parquet file to write (default: none, the embeddings stay in memory)."""
    space: SpaceName = "own"
    """"shared" gives embeddings that can be compared across widths: queries at 0.25x find what was embedded at 1x."""
    space_data: Data | None = None
    """Images to fit that space on, without labels (default: those that the run was trained on)."""


@dataclass(frozen=True, kw_only=True)
class PredictionSettings(CollectionSettings):
    """How images are classified."""

    threshold: float | None = None
    """Probability below which it abstains, from 0 to 1 (default: the one from which on 95 percent of the labels that
    the evaluation held out were right)."""
    head: str | None = None
    """The classifier, by the name of the data that it was learned on (default: the only one)."""
    out: AnyPath | None = None
    """The csv file to write."""
    page: AnyPath | None = None
    """Also write a page with pictures, the least sure first."""
    coverage: bool = False
    """Measure accuracy against coverage at every width that has a classifier; needs labelled images that it has not
    learned from."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threshold is not None and not 0 <= self.threshold <= 1:
            raise UserError(f"threshold={self.threshold:g} is not a probability: it is from 0 to 1")


@dataclass(frozen=True, kw_only=True)
class FindSettings:
    """What is found in a collection, and how."""

    width: OneWidth | None = None
    """Width to embed the query at (default: that of the index; another one if the index is of the shared space)."""
    count: int = 10
    """Images to find for each query."""
    at_least: float = 0.98
    """Cosine from which on two images are near-duplicates."""
    across: TwoParts | None = None
    """Find the images of one part of DATA that are in another as well, such as "train" and "test": those of the same
    bytes, and with `run` those with a cosine of `at_least`."""
    engine: Engine = "auto"
    """What searches; the results are the same."""
    page: AnyPath | None = None
    """Also write a page with pictures."""
    overwrite: bool = False
    """Replace an earlier page."""

    def __post_init__(self) -> None:
        if self.across is not None and len(set(self.across)) != 2:
            raise UserError("`across` takes two parts, such as train and test")
