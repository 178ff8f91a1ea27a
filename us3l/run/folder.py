"""A run's folder: where everything of one pre-training lies."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from us3l.description import holds_model, read_description
from us3l.hub import local_folder
from us3l.run.config import read_plain, write_config
from us3l.run.identity import Weights, data_source, weights_of
from us3l.system.errors import UserError
from us3l.system.files import check_inside, locked

if TYPE_CHECKING:
    from torch import nn

    from us3l.run.bundles import Bundle
    from us3l.run.detections import DetectionRecord
    from us3l.run.evaluations import EvaluationRecord
    from us3l.run.profiles import Profile
    from us3l.run.searches import SearchRecord
    from us3l.slimmable import Slimmable

LOCK = ".lock"  # the name that `us3l.system.files.locked` gives it


@dataclass(frozen=True)
class Run:
    """The folder of a run. A model's own folder may stand in its place: then results lie beside the model.

    Args:
        path: Of the folder. It need not exist yet. "hf:USER/NAME" is a model on the Hugging Face Hub, which is fetched;
            "builtin" is the network in the box.
        family: The function from a width to a network, if the network is one of your own.

    >>> Run("runs/photos").metrics
    PosixPath('runs/photos/metrics.jsonl')
    """

    folder: Path
    family: Callable[[Any], nn.Module] | None = field(default=None, compare=False, repr=False)

    def __init__(self, path: str | Path, family: Callable[[Any], nn.Module] | None = None) -> None:
        object.__setattr__(self, "folder", local_folder(path))
        object.__setattr__(self, "family", family)

    # Where things are

    @property
    def config_file(self) -> Path:
        return self._inner("config.yaml")

    @property
    def starts(self) -> Path:
        return self._inner("starts.jsonl")

    @property
    def metrics(self) -> Path:
        return self._inner("metrics.jsonl")

    @property
    def speeds(self) -> Path:
        return self._inner("speed.jsonl")

    @property
    def log(self) -> Path:
        return self._inner("train.log")

    @property
    def damaged(self) -> Path:
        return self._inner("damaged.txt")

    @property
    def changed(self) -> Path:
        """Images that changed while it looked at them."""
        return self._inner("changed.txt")

    @property
    def images(self) -> Path:
        """Hashes of the images that it was trained on."""
        return self._inner("images.safetensors")

    @property
    def projector(self) -> Path:
        return self._inner("projector.safetensors")

    @property
    def classifier(self) -> Path:
        return self._inner("classifier.safetensors")

    @property
    def space(self) -> Path:
        return self._inner("space.safetensors")

    @property
    def report(self) -> Path:
        return self.folder / "report.html"

    @property
    def checkpoints(self) -> Path:
        return self._inner("checkpoints")

    @property
    def model(self) -> Path:
        inner = self._inner("model")
        return self.folder if not inner.exists() and holds_model(self.folder) else inner

    @property
    def evaluation_folder(self) -> Path:
        return self._inner("eval")

    @property
    def retrieval_folder(self) -> Path:
        return self._inner("retrieval")

    @property
    def profile_folder(self) -> Path:
        return self._inner("profile")

    @property
    def search_folder(self) -> Path:
        return self._inner("search")

    @property
    def detection_folder(self) -> Path:
        return self._inner("detect")

    @property
    def export_folder(self) -> Path:
        return self._inner("export")

    def mirror(self, logger: str) -> Path:
        """The folder of a logger that mirrors the metrics."""
        return self._inner(logger)

    def _inner(self, name: str) -> Path:
        """A path in this folder: a link that leads out of it might have anything read, or written anywhere."""
        return check_inside(self.folder, self.folder / name)

    # What state it is in

    @property
    def saved(self) -> bool:
        """Whether there is a folder for results: see `us3l.run.unsaved`."""
        return True

    @property
    def started(self) -> bool:
        return self.config_file.is_file()

    @property
    def finished(self) -> bool:
        """Whether all that a run leaves at its end is there: the model, and what it says is beside it."""
        if not holds_model(self.model):
            return False
        heads = {"projector": self.projector, "classifier": self.classifier}
        return all(path.is_file() for name, path in heads.items() if self.promised.get(name) is not None)

    @property
    def promised(self) -> dict[str, Any]:
        """What the model says about its training, and about files beside it; nothing, if there is no model."""
        metadata = read_description(self.model).get("metadata") if holds_model(self.model) else None
        training = metadata.get("training") if isinstance(metadata, dict) else None
        return training if isinstance(training, dict) else {}

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

    def start(self, config: Any) -> None:
        """Make the folder, which must not hold anything yet.

        Args:
            config: the settings, a dataclass, for config.yaml.
        """
        self.refuse_if_used()
        write_config(self.config_file, config)
        self.checkpoints.mkdir(exist_ok=True)

    def abandon(self) -> None:
        """Remove what `start` and the first step have written; `held` then removes the folder."""
        for path in (self.config_file, self.starts, self.log, self.damaged, self.changed, self.images):
            path.unlink(missing_ok=True)
        with suppress(OSError):
            shutil.rmtree(self.checkpoints)

    def refuse_if_used(self) -> None:
        if self.folder.exists() and (not self.folder.is_dir() or any(map(counts, self.folder.iterdir()))):
            raise UserError(f"{self.folder} already exists: choose another `out`, or continue that run with `resume`")

    # What is in it

    @property
    def data(self) -> str | None:
        """The images it was trained on, as they can be named now; None of a model alone."""
        settings = self.settings if self.started else {}
        data, path = settings.get("data"), settings.get("data_path", "")
        return data_source(data, path) if isinstance(data, str) and isinstance(path, str) else None

    @property
    def settings(self) -> dict[str, Any]:
        """The plain values of config.yaml."""
        self.check_started()
        return read_plain(self.config_file)

    def check_started(self) -> None:
        if not self.started:
            raise UserError(f"{self.folder} is not a run: there is no config.yaml in it")

    @cached_property
    def network(self) -> Slimmable:
        """The slimmable network. One of the user's own needs its `family`."""
        from us3l.storage import load

        if not self.folder.exists():
            raise UserError(f"there is no folder {self.folder}")
        if self.started and not self.model.exists():
            raise UserError(
                f"{self.folder} is not finished: `us3l.pretrain(out={str(self.folder)!r}, resume=True)` goes on with it"
            )
        return load(self.model if self.model.is_dir() else self.folder, self.family)

    @property
    def weights(self) -> Weights:
        """Which weights the model has: every result names its own, so that it is not taken for another model's."""
        return weights_of(self.model)

    @property
    def evaluations(self) -> dict[str, EvaluationRecord]:
        """What `us3l evaluate` found, by name. One of other weights than the model's is a `UserError`."""
        from us3l.run.evaluations import EVALUATIONS

        return EVALUATIONS.read_all(self)

    @property
    def profile(self) -> Profile | None:
        """What `us3l profile` measured, if anything; of several devices, read one by `us3l.run.profiles`."""
        from us3l.run.profiles import PROFILES, read_profile

        return read_profile(self) if PROFILES.names(self) else None

    @property
    def bundle(self) -> Bundle | None:
        """The exported networks, if there are any. Those of other weights than the model's are a `UserError`."""
        from us3l.run.bundles import MANIFEST, read_bundle

        if not (self.export_folder / MANIFEST).exists():
            return None
        bundle = read_bundle(self.export_folder)
        if {entry.weights for entry in bundle.entries} - {None, self.weights.weights}:
            raise UserError(f"{self.export_folder} holds networks of another model: move them, and export again")
        return bundle

    @property
    def searches(self) -> dict[str, SearchRecord]:
        """What `us3l search` found, by name, the newest last. Other weights than the model's are a `UserError`."""
        from us3l.run.records import by_date
        from us3l.run.searches import SEARCHES

        return {record.name: record for record in by_date(SEARCHES.read_all(self).values())}

    @property
    def detections(self) -> dict[str, DetectionRecord]:
        """What `us3l detect` found, by name. One of other weights than the model's is a `UserError`."""
        from us3l.run.detections import DETECTION_RECORDS

        return DETECTION_RECORDS.read_all(self)


def counts(path: Path) -> bool:
    """Whether a file is more than the traces of a run that was killed before it began."""
    return path.name != LOCK and ".tmp." not in path.name
