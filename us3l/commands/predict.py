"""`us3l predict`: the class of every image of a folder."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from us3l.collection.collection_settings import PredictionSettings
from us3l.commands.command import ModelCommand, command
from us3l.setting_types import Model, SomeImages

if TYPE_CHECKING:
    from us3l.collection.predicting import Predicted
    from us3l.commands.screen import CommandScreen


SHOWN = 5  # classes


@dataclass(frozen=True)
class Predict(PredictionSettings, ModelCommand):
    """Classify every image of a folder, of parquet files or of shards, or abstain where it is not sure.

    The classifier is the one that us3l evaluate learned from labelled images; its probabilities were calibrated on a
    fifth of their labels, and it answers where 95 percent of these were right. The csv file has the columns file, class
    (empty where it abstains), probability, guess (its best one) and label. Accuracy counts only images that the
    classifier has not learned from.

    examples:
      us3l predict runs/photos photos/ --out classes.csv
      us3l predict runs/photos photos/ --width 0.25 --threshold 0.9 --out classes.csv --page classes.html
      us3l predict runs/photos labelled-photos/ --split test --coverage
    """

    run: Model
    """The folder of a run that was evaluated, or of a bundle with classifiers."""
    data: SomeImages
    """Images to classify."""
    _: KW_ONLY


@command(Predict)
def predict(settings: Predict) -> Predicted:
    """Classify every image, with a probability, by the classifier that `evaluate` learned.

    Returns:
        Classes and probabilities: `rows` has a dictionary per image; `confidence` what abstaining is worth.
    """
    from us3l.collection.predicting import predict_images
    from us3l.commands.find import check_page
    from us3l.reporting.picture_page import page as page_of
    from us3l.reporting.picture_page import prediction_rows
    from us3l.run.unsaved import run_of
    from us3l.system.files import write_text
    from us3l.system.progress import progress_of

    progress, page = progress_of(settings.progress), None if settings.page is None else Path(settings.page)
    if page is not None:
        check_page(page, settings.overwrite)
    predicted = predict_images(run_of(settings.run), settings.data, settings, progress)
    if page is not None:
        intro = f"{len(predicted.files):,} images at {predicted.width:g}x, the least sure first."
        write_text(page, page_of("Classes", intro, prediction_rows(predicted.rows, predicted.source), marked=False))
    return predicted


def main(settings: Predict, screen: CommandScreen) -> None:
    from us3l.data.sources import tell_damaged
    from us3l.reporting.tables import coverage_table

    predicted = predict.with_settings(settings)
    tell_damaged(screen, str(settings.data), predicted.damaged)
    if predicted.confidence:
        screen.say(
            f"of {int(predicted.judged.sum()):,} labelled images that the classifier has not learned from: accuracy in "
            "percent of those that it is surest of, by their share, and the probability from which on it answers; the "
            "calibration error in points"
        )
        screen.console.print(coverage_table(predicted.confidence))
    screen.say(summary(predicted))
    for path in filter(None, (settings.out, settings.page)):
        screen.say(f"written: {path}")


def summary(predicted: Predicted) -> str:
    """Return what was done, by which classifier, and how good it is as far as the labels tell."""
    answered, count, classes = int(predicted.answered.sum()), len(predicted.files), predicted.classes
    names = ", ".join(classes[:SHOWN]) + (f" and {len(classes) - SHOWN} more" if len(classes) > SHOWN else "")
    lines = [
        f"{predicted.width:g}x, classes of {predicted.learned_on or 'the bundle'}: {names}",
        f"a class for {answered:,} of {count:,} images, those of a probability of {predicted.threshold:.2f} or more",
    ]
    if predicted.labels is not None:
        lines.append(quality(predicted))
    return "\n".join(lines)


def quality(predicted: Predicted) -> str:
    """Return how many answers are right, and of which images."""
    judged, labels = predicted.judged, [label for label in predicted.labels or () if label is not None]
    if not set(labels) & set(predicted.classes):
        return f"the labels, such as {labels[0]}, are none of its classes, so nothing can be said of its accuracy"
    if not judged.any():
        return "it has learned from all images whose labels it knows: nothing can be said of its accuracy"
    counted = f"{int((judged & predicted.answered).sum()):,} labelled images"
    apart = "it may have learned from some of them" if predicted.seen is None else "it has learned from none of them"
    right = "no answer" if predicted.accuracy is None else f"{predicted.accuracy:.1f} % right"
    return f"{right} of {counted}; {apart}"
