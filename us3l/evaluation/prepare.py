"""What all protocols begin and end with: images and widths that fit together, and what was measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn

from us3l.calibration import calibrate
from us3l.costs import cost
from us3l.data.images import Images
from us3l.data.preprocessing import Preprocessing
from us3l.data.sources import open_images
from us3l.evaluation.linear import Probe
from us3l.run import Run
from us3l.run.evaluations import FewLabels, WidthResult
from us3l.setting_types import SomeWidths, several
from us3l.slimmable import Slimmable
from us3l.system.errors import UserError
from us3l.system.progress import Progress
from us3l.width import FULL, Width

NINE_WIDTHS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.25)
"""The paper's."""
CALIBRATION = 2048
"""Images on which a width is calibrated that is not yet."""
MEMORY = 2**32  # bytes of decoded images; more are read as they are needed
FEWEST = 50
"""Images on which quality without labels is measured."""


@dataclass(frozen=True)
class Evaluation:
    """What a protocol measured, and what it trained on the way."""

    rows: list[WidthResult]
    few_labels: list[FewLabels] = field(default_factory=list)
    probes: dict[Width, Probe] = field(default_factory=dict)
    networks: dict[Width, nn.Module] = field(default_factory=dict)
    """The fine-tuned ones, which give logits; on the CPU."""
    damaged: list[str] = field(default_factory=list)
    """Images that could not be read, met when they were needed."""


@dataclass(frozen=True)
class EvaluationInputs:
    """A network, images, and the widths to evaluate: all checked, every width calibrated."""

    net: Slimmable
    train: Images
    test: Images
    widths: list[Width]
    preprocessing: Preprocessing
    classes: int
    """0 of images without labels."""

    @property
    def size(self) -> int:
        """Side of the images that the network sees."""
        return self.preprocessing.size

    def row(self, width: Width, **measured: Any) -> WidthResult:
        """Return the result of a width: what was measured, by the fields of `WidthResult`, beside what it costs."""
        return WidthResult(width, cost(self.net, width, size=self.size), **measured)


def chosen_widths(net: Slimmable, widths: Literal["all"] | SomeWidths | None = None) -> list[Width]:
    """Return the widths to evaluate, each once (default: the paper's nine, as far as the network has them)."""
    if widths == "all":
        return [*net.widths[::-1]]
    return list(dict.fromkeys(map(net.check, several(widths) if widths else net.among(NINE_WIDTHS))))


def prepare(
    net: Slimmable,
    train: Images,
    test: Images,
    widths: Literal["all"] | SomeWidths | None = None,
    labelled: bool = True,
    compared: bool = False,
    size: int | None = None,
) -> EvaluationInputs:
    """Check everything, and calibrate the widths that are not.

    Args:
        net: The network; images are brought to its device, if they are not too many for it.
        train: Images to learn from, and to calibrate on.
        test: Images to test on.
        widths: See `chosen_widths`.
        labelled: Whether labels are needed.
        compared: Whether the full network is needed as well, to compare the others with.
        size: Show the network images of another size than its own.
    """
    if labelled:
        check_labels(train, test)
    chosen, preprocessing = chosen_widths(net, widths), Preprocessing.of(net, size)
    device = next(net.full.parameters()).device
    train, test = (images.to(device) for images in (train, test))
    calibrate_missing(net, train, {FULL, *chosen} if compared else chosen, preprocessing)
    classes = len(train.classes or ()) or (0 if train.labels is None else int(train.labels.max()) + 1)
    return EvaluationInputs(net, train, test, chosen, preprocessing, classes)


def calibrate_missing(net: Slimmable, train: Images, widths: Iterable[Width], preprocessing: Preprocessing) -> None:
    """Collect batch-norm statistics of the widths that have none, on training images as they will be seen."""
    if missing := [width for width in widths if not net.calibrated(width)]:
        chosen = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))[:CALIBRATION].sort().values
        batches = train.subset(chosen).batches(preprocessing)
        calibrate(net, (batch.views[0] for batch in batches), missing)


def calibrate_left_out(run: Run, net: Slimmable, widths: Iterable[Width], data: str | None, progress: Progress) -> None:
    """Collect the batch-norm statistics that a run left out, in memory; the model's file stays as it is.

    Args:
        run: whose network it is.
        net: the network.
        widths: those that are wanted.
        data: images to collect them on (default: those of the training).
        progress: told which widths were without statistics.

    Raises:
        UserError: Some width has none, and there are no images.
    """
    missing = [width for width in widths if not net.calibrated(width)]
    if not missing:
        return
    name = data or run.data
    if name is None:
        raise UserError(f"width {missing[0]:g} is not calibrated: us3l.calibrate(net, images) and save the model again")
    preprocessing = Preprocessing.of(net)
    try:
        images = open_images(name, "train", preprocessing.resize, memory=MEMORY, progress=progress)
    except UserError as error:
        raise UserError(f"width {missing[0]:g} is not calibrated, and there are no images to do it: {error}") from None
    named = ", ".join(f"{width:g}x" for width in missing)
    progress.say(f"collecting batch-norm statistics of widths that the run left out, on {images.name}: {named}")
    calibrate_missing(net, images, missing, preprocessing)


def check_labels(train: Images, test: Images) -> None:
    """Raise a `UserError` unless a classifier can be trained and tested on the labels of these images."""
    for images in (train, test):
        if images.labels is None:
            raise UserError(
                f"{images.name} has no labels, and accuracy needs them: put the images of each class "
                "into a sub-folder of its own, at least two of these, or give other `data`. What needs no labels "
                f"(`quality`) is measured by the protocol fast, on at least {FEWEST} images"
            )
    assert train.labels is not None
    if len(train.labels.unique()) < 2:
        raise UserError(f"{train.name} has one class only: there is nothing to tell apart")
    assert test.labels is not None
    if unseen := sorted(set(test.labels.tolist()) - set(train.labels.tolist())):
        names = ", ".join(test.classes[label] if test.classes else str(label) for label in unseen[:5])
        raise UserError(
            f"{len(unseen)} classes of the test images have no training image ({names}): add some, "
            "or let it learn from more of them (`train_images`)"
        )


def enough_images(train: Images, test: Images) -> Images | None:
    """Return the images for quality without labels: those to test on, or else the others; None if all are too few."""
    return next((images for images in (test, train) if len(images) >= FEWEST), None)
