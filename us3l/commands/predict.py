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


@dataclass(frozen=True)
class Predict(PredictionSettings, ModelCommand):
    """Classify every image of a folder, of parquet files or of shards, or abstain where it is not sure.

    The classifier is the one that us3l evaluate learned from labelled images; its probabilities were calibrated on a
    fifth of their labels. The csv file has the columns file, class (empty where it abstains), probability and label.

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
            "accuracy in percent of the images that it is surest of, by their share, and the probability from which on "
            "it answers; the calibration error in points"
        )
        screen.console.print(coverage_table(predicted.confidence))
    screen.say(summary(predicted))
    for path in filter(None, (settings.out, settings.page)):
        screen.say(f"written: {path}")


def summary(predicted: Predicted) -> str:
    answered, count = int(predicted.answered.sum()), len(predicted.files)
    text = f"{predicted.width:g}x: a class for {answered:,} of {count:,} images"
    return text if predicted.accuracy is None else f"{text}, {predicted.accuracy:.1f} % of them right"
