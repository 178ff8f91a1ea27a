"""What `us3l predict` does: the class of every image of a source, or none where the classifier is not sure."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from us3l.collection.collection_settings import PredictionSettings
from us3l.collection.embedding import EmbeddingJob, choose_width, files_of, on_device, runtime_of
from us3l.collection.vectors import plain_text
from us3l.data.crops import unreadable
from us3l.data.sources import Data
from us3l.data.streamed import ImageFiles
from us3l.evaluation.scoring import Confidence, confidence
from us3l.run import Run
from us3l.system.errors import UserError
from us3l.system.files import replacing
from us3l.system.progress import SILENT, Progress
from us3l.system.stopping import stop_requests
from us3l.width import Width


@dataclass(frozen=True)
class Predicted:
    """The classes of some images."""

    width: Width
    classes: list[str]
    threshold: float
    files: list[str]
    probabilities: np.ndarray
    """N: of the most probable class of each image."""
    indices: np.ndarray
    """N: that class."""
    labels: list[str | None] | None
    damaged: list[str]
    source: str | None = None
    """Where the images are, if they have a path."""
    confidence: dict[Width, Confidence] = field(default_factory=dict)
    """Accuracy against coverage of each width that was asked for; see `coverage`."""

    @property
    def answered(self) -> np.ndarray:
        """Whether the classifier is sure enough of each image."""
        return self.probabilities >= self.threshold

    @property
    def accuracy(self) -> float | None:
        """In percent of the images that it answered for and that have a label; None if there are none."""
        if self.labels is None:
            return None
        known = [
            self.classes[index] == label
            for index, label, sure in zip(self.indices, self.labels, self.answered, strict=True)
            if sure and label is not None
        ]
        return 100 * sum(known) / len(known) if known else None

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A dictionary for each image: `class` is None where the classifier abstains."""
        labels = [{}] * len(self.files) if self.labels is None else [{"label": label} for label in self.labels]
        return [
            {"file": name, "class": self.classes[index] if sure else None, "probability": float(probability)} | label
            for name, index, sure, probability, label in zip(
                self.files, self.indices, self.answered, self.probabilities, labels, strict=True
            )
        ]


def predict_images(
    run: Run, data: Data, settings: PredictionSettings | None = None, progress: Progress = SILENT
) -> Predicted:
    """Classify every image of a source with the classifier that `us3l evaluate` learned.

    Args:
        run: A run that was evaluated, or the folder of a bundle with classifiers.
        data: Images; see `us3l.data.sources.Data`.
        settings: Which network and classifier, and what computes them.
        progress: Told how far it is.
    """
    settings = settings or PredictionSettings()
    out, coverage = None if settings.out is None else Path(settings.out), settings.coverage
    if out is not None and out.suffix.lower() != ".csv":
        raise UserError(f"{out}: predictions are written as .csv")
    if out is not None and out.exists() and not settings.overwrite:
        raise UserError(f"{out} already exists: choose another `out`, or replace it with `overwrite`")
    runtime = runtime_of(run, settings, head=settings.head)
    chosen = choose_width(runtime, run, settings, progress, "classes")
    files = files_of(data, settings, progress)
    codes = label_codes(files, runtime.networks.classes) if coverage else None
    found: dict[Width, _Logits] = {}
    measured: dict[Width, Confidence] = {}
    widths = dict.fromkeys([chosen, *(runtime.networks.widths("classes") if coverage else ())])
    counting = progress.counting("classifying", len(files) * len(widths))
    with on_device(runtime, settings.device), counting as count, stop_requests(progress.say) as asked_to_stop:
        for one in widths:
            forward = runtime.networks.run(one, "classes")
            job = EmbeddingJob(files, forward, runtime.networks.preprocessing, asked_to_stop)
            found[one] = _Logits(job, count, codes)
            if codes is not None:
                measured[one] = confidence(found[one].probabilities, found[one].codes)
    result = found[chosen]
    source = str(data) if isinstance(data, str | Path) else None
    predicted = Predicted(
        chosen,
        runtime.networks.classes,
        settings.threshold,
        result.files,
        result.best.numpy(),
        result.indices.numpy(),
        result.labels,
        result.damaged,
        source,
        dict(sorted(measured.items(), reverse=True)),
    )
    if out is not None:
        write_predictions(out, predicted)
    return predicted


class _Logits:
    """What a classifier says of all images; of probabilities only the largest is kept, unless all are needed."""

    def __init__(self, job: EmbeddingJob, count: Any, codes: dict[str, int] | None) -> None:
        self.files: list[str] = []
        self.damaged: list[str] = []
        self.labels: list[str | None] | None = [] if job.labelled else None
        best, indices, kept = [], [], []
        for part in job.parts(0, count):
            self.files += part.files
            self.damaged += part.damaged
            if self.labels is not None:
                self.labels += part.labels or []
            if part.files:
                probabilities = torch.from_numpy(part.values).softmax(1)
                found = probabilities.max(1)
                best.append(found.values)
                indices.append(found.indices)
                kept += [probabilities] if codes is not None else []
        if not best:
            raise unreadable(job.files.name, self.damaged)
        self.best, self.indices = torch.cat(best), torch.cat(indices)
        if codes is not None:
            known = [place for place, label in enumerate(self.labels or ()) if label in codes]
            self.probabilities = torch.cat(kept)[known]
            self.codes = torch.tensor([codes[str((self.labels or [])[place])] for place in known])


def label_codes(files: ImageFiles, classes: list[str]) -> dict[str, int]:
    """The number of each class by its name, if images have labels of these names."""
    names = {files.source.classes[code] for code in np.unique(files.source.labels[files.chosen]) if code >= 0}
    if not names & set(classes):
        there = f"only {', '.join(sorted(names)[:5])}" if names else "none at all"
        raise UserError(
            f"{files.name} has no labels that the classifier knows, {there}: accuracy needs images in a sub-folder per "
            f"class, such as {classes[0]}; or leave out `coverage`"
        )
    return {name: place for place, name in enumerate(classes)}


def write_predictions(path: Path, predicted: Predicted) -> None:
    """A csv file with the columns file, class (empty where it abstains), probability and, where there is one, label."""
    with replacing(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["file", "class", "probability", *([] if predicted.labels is None else ["label"])])
        for row in _plain(predicted):
            writer.writerow(row)


def _plain(predicted: Predicted) -> Iterator[list[str]]:
    for row in predicted.rows:
        label = [] if predicted.labels is None else [row["label"] or ""]
        yield [plain_text(row["file"]), row["class"] or "", f"{row['probability']:.6f}", *label]
