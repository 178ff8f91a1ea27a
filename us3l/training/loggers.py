"""The usual loggers as mirrors of metrics.jsonl: TensorBoard, Weights & Biases, MLflow.

A run writes its records once, into metrics.jsonl. What a logger holds follows from that file: on its own machine it is
made again from it when a run is resumed, so that nothing is there twice; a server is told only what it does not have.

Nothing leaves the machine unless the user's own settings of a logger ask for it: WANDB_MODE=online, or
MLFLOW_TRACKING_URI. The usage data that these packages would send to their makers is switched off.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch.nn import functional as F

from us3l.data.images import ImageSet
from us3l.data.preprocessing import Preprocessing
from us3l.evaluation.features import embed_all
from us3l.run import Run
from us3l.run.training_log import Gauges, Record, StepRecord, append_records, read_records
from us3l.slimmable import Slimmable
from us3l.system.files import read_lines
from us3l.system.optional import missing
from us3l.system.progress import SILENT
from us3l.system.spacing import evenly_spaced
from us3l.system.streams import one_line
from us3l.training.run_config import LoggerName
from us3l.width import FULL, Width

PACKAGES: dict[LoggerName, str] = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow"}
PICTURED, QUERIES, NEIGHBOURS = 500, 8, 6
Sample = Callable[[int, torch.Generator], ImageSet]
Tell = Callable[..., None]
"""Is told a message, and its `style`."""


class Logger(Protocol):
    """Where records are shown."""

    last: int
    """The last step that it has; -1 if it has none."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Note some values of a step. Steps come in order, the same one perhaps several times."""

    def show(self, name: str, step: int, picture: np.ndarray) -> None:
        """Show a picture: H x W x 3, uint8."""

    def close(self) -> None: ...


class Recorder:
    """Keeps what a run records: in metrics.jsonl, and in the loggers that mirror it.

    A logger that fails is left alone from then on, and training goes on.

    Args:
        run: Whose records they are.
        names: Of the loggers.
        tell: Hears of a logger that failed.
    """

    def __init__(self, run: Run, names: Sequence[LoggerName] = (), tell: Tell = SILENT.say) -> None:
        self.run, self.tell = run, tell
        self.waiting = list(dict.fromkeys(names))
        self.loggers: dict[LoggerName, Logger] = {}

    def add(self, records: Sequence[Record]) -> None:
        """Write records, and show them."""
        self._open()
        append_records(self.run, records)
        for name in list(self.loggers):
            self._mirror(name, records)

    def show_neighbours(self, net: Slimmable, sample: Sample, preprocessing: Preprocessing, steps: int) -> None:
        """Show which images the widest and the narrowest network take for alike; without loggers nothing is done.

        Args:
            net: At the end of the run, calibrated.
            sample: Gives images to look at.
            preprocessing: How the network sees them.
            steps: Of the whole run.
        """
        self._open()
        if not self.loggers:
            return
        images = sample(PICTURED, torch.Generator().manual_seed(0))
        for width in dict.fromkeys(width for width in (FULL, net.widths[0]) if net.calibrated(width)):
            picture = neighbours_picture(net, width, images, preprocessing)
            for name in list(self.loggers):
                with self._guarded(name):
                    self.loggers[name].show(f"neighbours {width:g}x", steps - 1, picture)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self.loggers):
            with self._guarded(name):
                self.loggers[name].close()
        self.loggers.clear()

    def _open(self) -> None:
        """Open the loggers when there is something to show; they catch up with what was recorded before."""
        for name in self.waiting:
            with self._guarded(name):
                self.loggers[name] = OPENERS[name](self.run)
                self._mirror(name, read_records(self.run))
        self.waiting.clear()

    def _mirror(self, name: LoggerName, records: Iterable[Record]) -> None:
        with self._guarded(name):
            logger = self.loggers[name]
            for record in records:
                if record.step > logger.last:
                    logger.log(record.step, values_of(record))

    @contextmanager
    def _guarded(self, name: LoggerName) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # of a package that is not ours: a full disk, a server that is gone
            self.loggers.pop(name, None)
            self.tell(f"{name} failed, and is left alone from now on: {one_line(str(error)):.200}", style="yellow")


def values_of(record: Record) -> dict[str, float]:
    """Return the values of a record by the names that loggers show.

    Sub-networks are told by their place in the step, since their widths are drawn again each time.

    >>> values_of(StepRecord(7, 1, 0.1, [Width(1), Width(0.25)], [4.2, -0.5]))
    {'lr': 0.1, 'epoch': 1, 'loss/full': 4.2, 'loss/sub1': -0.5, 'width/sub1': 0.25}
    >>> values_of(Gauges(7, 1, {"0.25": {"spread": 0.9}}))
    {'spread/0.25x': 0.9}
    """
    if isinstance(record, Gauges):
        return {f"{name}/{width}x": value for width, values in record.gauges.items() for name, value in values.items()}
    values: dict[str, float] = {"lr": record.lr, "epoch": record.epoch}
    if not isinstance(record, StepRecord):
        return values | {"skipped": 1}
    values["loss/full"] = record.losses[0]
    for place, (width, loss) in enumerate(zip(record.widths[1:], record.losses[1:], strict=True), start=1):
        values[f"loss/sub{place}"] = loss
        if Width(width).plain:  # widths per stage are in metrics.jsonl alone
            values[f"width/sub{place}"] = float(width)
    return values


def check_loggers(names: Iterable[LoggerName]) -> None:
    """Raise a `UserError` if a package of theirs is missing, before anything else is done."""
    for name in names:
        if find_spec(PACKAGES[name]) is None:
            raise missing(PACKAGES[name])


def identity_of(run: Run) -> str:
    """Return a name for the run that stays the same when it is resumed, and differs from those of other runs."""
    first = next(iter(read_lines(run.starts)), "") if run.starts.exists() else ""
    return hashlib.sha256(f"{run.folder.resolve().name}\n{first}".encode(errors="surrogateescape")).hexdigest()[:16]


def fresh(folder: Path) -> Path:
    """Make a logger's folder again, without what an earlier part of the run left in it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


class TensorBoard:
    """Events in RUN/tensorboard: `tensorboard --logdir RUN`."""

    last = -1

    def __init__(self, run: Run) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(fresh(run.mirror("tensorboard"))))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step, new_style=True, double_precision=True)

    def show(self, name: str, step: int, picture: np.ndarray) -> None:
        self.writer.add_image(name, picture, step, dataformats="HWC")

    def close(self) -> None:
        self.writer.close()


class WeightsAndBiases:
    """A run in RUN/wandb, offline unless WANDB_MODE says otherwise: `wandb sync RUN/wandb/offline-run-*`."""

    def __init__(self, run: Run) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        wandb: Any = import_module("wandb")
        mode = os.environ.get("WANDB_MODE", "offline")
        folder = run.mirror("wandb")
        if mode == "offline":
            fresh(folder)
        # Nothing about the machine, the code or the command line goes along.
        settings = wandb.Settings(
            console="off", silent=True, disable_code=True, disable_git=True, x_disable_stats=True, x_disable_meta=True
        )
        self.wandb = wandb
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "us3l"),
            name=run.folder.resolve().name,
            id=identity_of(run),
            dir=str(run.folder),
            mode=mode,
            resume="allow" if mode == "online" else None,
            config=run.settings,
            settings=settings,
        )
        self.last = int(self.run.step) - 1 if mode == "online" else -1

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log(dict(values), step=step)

    def show(self, name: str, step: int, picture: np.ndarray) -> None:
        self.run.log({name: self.wandb.Image(picture)}, step=step)

    def close(self) -> None:
        self.run.finish()


class MLflow:
    """A run in RUN/mlruns, or where MLFLOW_TRACKING_URI says: `mlflow ui --backend-store-uri RUN/mlruns`."""

    def __init__(self, run: Run) -> None:
        # The last one lets it write plain files, which need no database, and which newer versions refuse by default.
        for variable in ("MLFLOW_DISABLE_TELEMETRY", "DO_NOT_TRACK", "MLFLOW_ALLOW_FILE_STORE"):
            os.environ.setdefault(variable, "true")
        tracking: Any = import_module("mlflow.tracking")
        self.entities: Any = import_module("mlflow.entities")
        place, folder = os.environ.get("MLFLOW_TRACKING_URI"), run.mirror("mlruns")
        self.client = tracking.MlflowClient(place or folder.resolve().as_uri())
        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", "us3l")
        existing = self.client.get_experiment_by_name(experiment)
        number = existing.experiment_id if existing else self.client.create_experiment(experiment)
        identity = identity_of(run)
        begun = self.client.search_runs([number], f"tags.`us3l.run` = '{identity}'", max_results=1)
        for old in begun if place is None else ():
            shutil.rmtree(folder / number / old.info.run_id, ignore_errors=True)
        if begun and place is not None:
            self.id = begun[0].info.run_id
            self.last = max((metric.step for metric in self.client.get_metric_history(self.id, "lr")), default=-1)
        else:
            tags = {"us3l.run": identity}
            self.id = self.client.create_run(number, tags=tags, run_name=run.folder.resolve().name).info.run_id
            self.last = -1

    def log(self, step: int, values: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        metrics = [self.entities.Metric(name, value, now, step) for name, value in values.items()]
        self.client.log_batch(self.id, metrics=metrics)

    def show(self, name: str, step: int, picture: np.ndarray) -> None:  # noqa: ARG002 (artifacts have no step)
        self.client.log_image(self.id, picture, artifact_file=f"{name}.png")

    def close(self) -> None:
        self.client.set_terminated(self.id)


OPENERS: dict[LoggerName, Callable[[Run], Logger]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
}


def neighbours_picture(net: Slimmable, width: Width, images: ImageSet, preprocessing: Preprocessing) -> np.ndarray:
    """Draw some images, each followed by those nearest to it in the features of a width: H x W x 3, uint8."""
    features = F.normalize(embed_all([net.at(width)], images, preprocessing).values[0].float(), dim=1)
    queries = torch.tensor(evenly_spaced(len(images), QUERIES))
    near = (features[queries] @ features.T).topk(min(NEIGHBOURS + 1, len(images))).indices  # itself first
    shown = images.images[near.cpu()].cpu()  # rows x columns x 3 x S x S
    rows, columns, _, height, across = shown.shape
    return shown.permute(0, 3, 1, 4, 2).reshape(rows * height, columns * across, 3).numpy()
