"""`us3l predict`"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from us3l.commands.embed import DataArgument
from us3l.commands.parse import RunArgument, parse
from us3l.run.folder import Product
from us3l.system.devices import Device
from us3l.width import Width

if TYPE_CHECKING:
    from us3l.collection.predicting import Predicted


@dataclass(frozen=True)
class Predict:
    """Classify every image of a folder, of parquet files or of shards, or abstain where it is not sure.

    The classifier is the one that us3l evaluate learned from labelled images; its probabilities were calibrated on a
    fifth of their labels. The csv file has the columns file, class (empty where it abstains), probability and label.

    examples:
      us3l predict runs/photos photos/ --out classes.csv
      us3l predict runs/photos photos/ --width 0.25 --threshold 0.9 --out classes.csv --page classes.html
      us3l predict runs/photos labelled-photos/ --split test --coverage
    """

    run: RunArgument
    """The folder of a run that was evaluated, or of a bundle with classifiers."""
    data: DataArgument
    """Images to classify."""
    width: Width | None = None
    """Width of the network (default: the widest that has a classifier)."""
    latency_ms: float | None = None
    """Take the best width within this many milliseconds per image, by us3l profile; a bundle is timed now."""
    threshold: float = 0.0
    """Probability below which it abstains."""
    head: str | None = None
    """The classifier, by the name of the data that it was learned on (default: the only one)."""
    out: Path | None = None
    """The csv file to write."""
    page: Path | None = None
    """Also write a page with pictures, the least sure first."""
    coverage: bool = False
    """Measure accuracy against coverage at every width that has a classifier; needs labels."""
    split: Literal["every", "train", "test"] = "every"
    """Which images, where there is a training and a test part."""
    data_root: Path | None = None
    """Folder that holds named data sets (default: the environment variable US3L_DATA, else ./data)."""
    weights: Product | None = None
    """Which weights: "student" or "teacher" (default: those of the run's model). See us3l evaluate."""
    backend: Literal["auto", "torch", "onnx", "openvino"] = "auto"
    """What runs the network (auto: PyTorch for runs; for bundles what they hold)."""
    device: Device = "auto"
    """Device that PyTorch computes on."""
    threads: int | None = None
    """Threads that compute (default: PyTorch's own number)."""
    int8: bool | None = None
    """Which files of a bundle that has both kinds."""
    overwrite: bool = False
    """Replace files of these names."""


def main(arguments: list[str]) -> None:
    command = parse(Predict, "predict", arguments)
    from us3l.commands.screen import CommandScreen
    from us3l.data.sources import tell_damaged
    from us3l.reporting.tables import coverage_table
    from us3l.verbs import predict

    screen = CommandScreen()
    predicted = predict(**vars(command), progress=screen)
    tell_damaged(screen, command.data, predicted.damaged)
    if predicted.confidence:
        screen.say(
            "accuracy in percent of the images that it is surest of, by their share, and the probability from which on "
            "it answers; the calibration error in points"
        )
        screen.console.print(coverage_table(predicted.confidence))
    screen.say(summary(predicted))
    for path in filter(None, (command.out, command.page)):
        screen.say(f"written: {path}")


def summary(predicted: Predicted) -> str:
    answered, count = int(predicted.answered.sum()), len(predicted.files)
    text = f"{predicted.width:g}x: a class for {answered:,} of {count:,} images"
    return text if predicted.accuracy is None else f"{text}, {predicted.accuracy:.1f} % of them right"
