"""The networks that a `Runtime` runs: every width of one slimmable network, or the files of a bundle."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Literal, Protocol

from torch import nn

from us3l.collection.shared_space import SpaceName, shared_maps
from us3l.data.preprocessing import Preprocessing
from us3l.deploy.classifiers import Head, find_heads
from us3l.run import Run
from us3l.run.bundles import SHARED, Bundle, Entry
from us3l.run.identity import slug
from us3l.runtime.backends import OPENERS, Backend, Forward, run_torch
from us3l.slimmable import Slimmable
from us3l.system.errors import UserError
from us3l.width import Width

Task = Literal["features", "classes"]


class Networks(Protocol):
    """The networks of several widths, each ready to run: encoders for features, others for classes."""

    name: str
    """Of where they come from."""
    preprocessing: Preprocessing

    @property
    def classes(self) -> list[str]: ...

    def widths(self, task: Task) -> list[Width]:
        """Ascending; none if it has no network for that."""

    def run(self, width: Width, task: Task) -> Forward: ...

    def threshold(self, width: Width) -> float | None:
        """Return the probability from which on the classifier of a width is sure; None if it is not known."""

    def why_not(self, task: Task) -> str:
        """What to do about a task that it has no network for."""

    def renew(self) -> None:
        """Forget the locks of the process that this one was forked from."""


class SlimmableNetworks:
    """Every width of a slimmable network, in PyTorch, on its one copy of weights; with a run's classifiers."""

    def __init__(self, model: Slimmable | Path, head: str | None, space: SpaceName = "own") -> None:
        from us3l.storage import load

        self.name = "a network" if isinstance(model, Slimmable) else str(model)
        self.net = model if isinstance(model, Slimmable) else load(model)
        if "preprocessing" not in self.net.metadata:
            raise UserError(
                "the network does not say how it wants its images: set "
                'net.metadata["preprocessing"] = Preprocessing.usual(size).to_plain()'
            )
        self.preprocessing = Preprocessing.of(self.net)
        self.heads: dict[Width, Head] = {}
        self.trouble = "a network alone has no classifiers: give the folder of a run that was evaluated"
        if isinstance(model, Path):
            try:
                self.heads = find_heads(Run(model), self.net, head)
            except UserError as error:  # which matters to `predict` only
                self.trouble = str(error)
        if head is not None and not self.heads:
            raise UserError(self.trouble)
        self.run_folder = Run(model) if isinstance(model, Path) else None
        self.space = space
        self.maps: dict[Width, Head] = {}
        self._lock = threading.Lock()

    @property
    def classes(self) -> list[str]:
        return next(iter(self.heads.values())).classes or []

    def widths(self, task: Task) -> list[Width]:
        return [*self.net.widths] if task == "features" else sorted(self.heads)

    def run(self, width: Width, task: Task) -> Forward:
        if task == "features":
            if self.space == "own":
                return run_torch(self.network(width))
            placed = self.map(width)
            return run_torch(placed.on(placed.encoder(width, self.network)))
        head = self.heads.get(self.net.canonical(width))
        if head is None:
            raise UserError(f"{self.name} has no classifier for width {width}: it has for {_numbers(self.heads)}")
        return run_torch(head.on(self.network(width)))

    def threshold(self, width: Width) -> float | None:
        return self.heads[self.net.canonical(width)].probe.threshold

    @property
    def evaluation(self) -> str | None:
        """The evaluation that its classifiers come from."""
        return next((head.data for head in self.heads.values()), None)

    def map(self, width: Width) -> Head:
        """From the features of a width to the space that all widths share."""
        canonical = self.net.canonical(width)
        if canonical not in self.maps and self.run_folder:
            self.maps = shared_maps(self.run_folder, self.net)
        found = self.maps.get(canonical)
        if found is None:
            raise UserError(
                f"{self.name} has no map from {width:g}x to the space that all widths share: "
                "`us3l.embed('RUN', 'DATA', space='shared')` fits it"
            )
        return found

    def network(self, width: Width) -> nn.Module:
        with self._lock:  # the first call for a width builds its module
            if not self.net.calibrated(width):
                raise UserError(f"width {width} is not calibrated: us3l.calibrate(net, images) first")
            return self.net.at(width)

    def why_not(self, task: Task) -> str:  # noqa: ARG002 (it always has features)
        return self.trouble

    def renew(self) -> None:
        self._lock = threading.Lock()


class BundleNetworks:
    """The widths of a bundle, each from its file, which is opened when first needed."""

    def __init__(
        self,
        bundle: Bundle,
        backend: Backend | None,
        threads: int,
        int8: bool | None,
        head: str | None,
        space: SpaceName = "own",
    ) -> None:
        self.bundle, self.threads, self.name = bundle, threads, str(bundle.folder)
        self.preprocessing = bundle.preprocessing
        formats = {entry.format for entry in bundle.entries}
        self.backend = backend or ("openvino" if "openvino" in formats else "onnx")
        fitting = [entry for entry in bundle.entries if entry.format == self.backend]
        kept = [entry for entry in fitting if int8 is None or entry.int8 == int8]
        if not kept:
            raise UserError(
                f"{bundle.folder} holds no {self.backend} file{' in INT8' if int8 else ''}: export some in that format"
                f"{' with int8' if int8 else ''}"
            )
        heads = {entry.head for entry in kept} - {None, SHARED}
        if head is not None:
            heads &= {head, f"probe-{slug(head)}", f"finetuned-{slug(head)}"}
            if not heads:
                raise UserError(f"{bundle.folder} holds no classifier {head!r}: see its manifest.json")
        self.heads = sorted(name for name in heads if name is not None)
        self.entries: dict[Task, dict[Width, Entry]] = {
            "features": by_width([entry for entry in kept if entry.head == (SHARED if space == "shared" else None)]),
            "classes": by_width([entry for entry in kept if [entry.head] == self.heads]),
        }
        if space == "shared" and not self.entries["features"]:
            raise UserError(f"{bundle.folder} holds no file of the shared space: export some with `space='shared'`")
        if not any(self.entries.values()) and any(entry.head == SHARED for entry in kept):
            raise UserError(f"{bundle.folder} holds files of the shared space only: say `space='shared'`")
        if not any(self.entries.values()):
            raise UserError(self.why_not("classes"))
        self._runs: dict[tuple[Width, Task], Forward] = {}
        self._lock = threading.Lock()

    @property
    def classes(self) -> list[str]:
        return next(iter(self.entries["classes"].values())).classes or []

    def widths(self, task: Task) -> list[Width]:
        return sorted(self.entries[task])

    def run(self, width: Width, task: Task) -> Forward:
        entries = self.entries[task]
        if width not in entries:
            raise UserError(f"{self.name} has no width {width} for {task}: it has {_numbers(entries)}")
        with self._lock:
            if (width, task) not in self._runs:
                self._runs[width, task] = OPENERS[self.backend](self.bundle.path(entries[width]), self.threads)
            return self._runs[width, task]

    def threshold(self, width: Width) -> float | None:
        return self.entries["classes"][width].threshold

    def why_not(self, task: Task) -> str:
        if task == "features":
            return f"{self.name} holds classifiers only, which give no features: export without a head for them"
        if len(self.heads) > 1:
            return f"{self.name} holds classifiers {', '.join(self.heads)}: choose one, head={self.heads[0]!r}"
        return f"{self.name} holds no classifier, only encoders: export with a head to predict classes"

    def renew(self) -> None:
        self._lock = threading.Lock()


def by_width(entries: list[Entry]) -> dict[Width, Entry]:
    """One entry for each width: all of full precision, where there is a choice."""
    return {entry.width: entry for entry in entries if entry.int8 == all(other.int8 for other in entries)}


def _numbers(widths: dict[Width, Entry] | dict[Width, Head]) -> str:
    return ", ".join(map(str, sorted(widths)))
