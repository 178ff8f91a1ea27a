"""What `us3l predict` does: the class of every image of a source, or none where the classifier is not sure."""

from __future__ import annotations

import csv
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from us3l.collection.collection_settings import PredictionSettings
from us3l.collection.embedding import EmbeddingJob, choose_width, files_of, merged, on_device, runtime_of
from us3l.collection.vectors import Portion, plain_text
from us3l.data.crops import unreadable
from us3l.data.sources import Data
from us3l.data.streamed import ImageFiles
from us3l.evaluation.held_out import held_out
from us3l.evaluation.scoring import Confidence, confidence
from us3l.run import Run
from us3l.runtime.backends import Forward
from us3l.runtime.networks import SlimmableNetworks
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
    """The probability from which on it answers."""
    files: list[str]
    probabilities: np.ndarray
    """N: of the most probable class of each image."""
    indices: np.ndarray
    """N: that class."""
    labels: list[str | None] | None
    damaged: list[str]
    learned_on: str | None = None
    """The evaluation that the classifier comes from; None where it is not known."""
    seen: Collection[str] | None = frozenset()
    """The images that the classifier has learned from; None where that is not known."""
    source: str | None = None
    """Where the images are, if they have a path."""
    confidence: dict[Width, Confidence] = field(default_factory=dict)
    """Accuracy against coverage of each width that was asked for; see `coverage`."""

    @property
    def answered(self) -> np.ndarray:
        """Whether the classifier is sure enough of each image."""
        return self.probabilities >= self.threshold

    @property
    def judged(self) -> np.ndarray:
        """Which images tell how good it is: it knows their labels, and has not learned from them."""
        labels, seen = self.labels or [None] * len(self.files), self.seen or ()
        return np.array(
            [label in self.classes and file not in seen for file, label in zip(self.files, labels, strict=True)]
        )

    @property
    def accuracy(self) -> float | None:
        """In percent of the images that it answered for, among those that count; None if there are none."""
        places = np.flatnonzero(self.judged & self.answered)
        right = [self.classes[self.indices[place]] == (self.labels or [])[place] for place in places]
        return 100 * sum(right) / len(right) if right else None

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A dictionary per image: `class` is None where the classifier abstains, `guess` its best guess."""
        labels = [{}] * len(self.files) if self.labels is None else [{"label": label} for label in self.labels]
        guesses = [self.classes[index] for index in self.indices]
        columns = zip(self.files, guesses, self.answered, self.probabilities.tolist(), labels, strict=True)
        return [
            {"file": name, "class": guess if sure else None, "probability": probability, "guess": guess} | label
            for name, guess, sure, probability, label in columns
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
    chosen, networks = choose_width(runtime, run, settings, progress, "classes"), runtime.networks
    files, classes = files_of(data, settings, progress), networks.classes
    evaluation = networks.evaluation if isinstance(networks, SlimmableNetworks) else None
    labels = label_names(files)
    known = labels & set(classes)
    if coverage and not known:
        there = f"only {', '.join(sorted(labels)[:5])}" if labels else "none at all"
        raise UserError(
            f"{files.name} has no labels that the classifier knows, {there}: accuracy needs images in a sub-folder per "
            f"class, such as {classes[0]}; or leave out `coverage`"
        )
    seen = images_seen(run, evaluation, files, data, settings) if known else set[str]()
    if coverage and seen is None:
        raise UserError(
            "it is not known which images the classifier has learned from: accuracy needs others; give the run that "
            "was evaluated, with its images where they were, or leave out `coverage`"
        )
    classified: dict[Width, Portion] = {}
    widths = dict.fromkeys([chosen, *(networks.widths("classes") if coverage else ())])
    what = "classifying (images x widths)" if coverage else "classifying"
    counting = progress.counting(what, len(files) * len(widths))
    with on_device(runtime, settings.device), counting as count, stop_requests(progress.say) as asked_to_stop:
        for width in widths:
            forward = best_class(networks.run(width, "classes"))
            job = EmbeddingJob(files, forward, networks.preprocessing, asked_to_stop)
            classified[width] = merged(list(job.parts(0, count)))
    found = classified[chosen]
    if not found.files:
        raise unreadable(files.name, found.damaged)
    threshold = networks.threshold(chosen) if settings.threshold is None else settings.threshold
    predicted = Predicted(
        chosen,
        classes,
        threshold or 0.0,
        found.files,
        found.values[:, 0],
        found.values[:, 1].astype(int),
        found.labels,
        found.damaged,
        evaluation,
        seen,
        str(data) if isinstance(data, str | Path) else None,
    )
    if coverage:
        if not predicted.judged.any():
            raise UserError(
                f"{files.name}: the classifier has learned from all images whose labels it knows: give others"
            )
        measured = {width: measure(classified[width], predicted) for width in sorted(classified, reverse=True)}
        predicted = replace(predicted, confidence=measured)
    if out is not None:
        write_predictions(out, predicted)
    return predicted


def best_class(forward: Forward) -> Forward:
    """Return what gives, instead of logits, the probability of each image's most probable class, and its number."""

    def run(images: np.ndarray) -> np.ndarray:
        sure, guess = torch.from_numpy(forward(images)).softmax(1).max(1)
        return torch.stack([sure, guess.to(sure)], dim=1).numpy()

    return run


def measure(classified: Portion, predicted: Predicted) -> Confidence:
    """Return accuracy against coverage of what a width says of the images that count."""
    sure, guess = torch.from_numpy(classified.values[predicted.judged]).T
    labels = np.array(predicted.labels, object)[predicted.judged]
    right = [predicted.classes[int(number)] == label for number, label in zip(guess, labels, strict=True)]
    return confidence(sure, torch.tensor(right))


def label_names(files: ImageFiles) -> set[str]:
    """Return the names of all labels of images."""
    return {files.source.classes[code] for code in np.unique(files.source.labels[files.chosen]) if code >= 0}


def images_seen(
    run: Run, evaluation: str | None, files: ImageFiles, data: Data, settings: PredictionSettings
) -> set[str] | None:
    """Return the names of the images that a classifier has learned from; None if that is not known."""
    unseen = None if evaluation is None else held_out(run, evaluation, files, data, settings.data_root)
    return None if unseen is None else {files.source.name(index) for index in files.chosen[~unseen]}


def write_predictions(path: Path, predicted: Predicted) -> None:
    """Write a csv file with the columns file, class (empty where it abstains), probability, guess and any label."""
    with replacing(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["file", "class", "probability", "guess", *([] if predicted.labels is None else ["label"])])
        for row in predicted.rows:
            label = [] if predicted.labels is None else [row["label"] or ""]
            sure = f"{row['probability']:.6f}"
            writer.writerow([plain_text(row["file"]), row["class"] or "", sure, row["guess"], *label])
