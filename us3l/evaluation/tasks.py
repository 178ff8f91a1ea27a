"""What all protocols begin and end with: images and widths that were checked, and what was found at each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from us3l.calibration import calibrate
from us3l.costs import cost
from us3l.data.images import Images
from us3l.data.preprocessing import Preprocessing
from us3l.evaluation.linear import Probe
from us3l.run.evaluations import FewLabels, Score, WidthResult
from us3l.slimmable import Slimmable
from us3l.system.errors import UserError
from us3l.width import FULL, AnyWidth, Width

NINE_WIDTHS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.25)
"""The paper's."""
CALIBRATION = 2048
"""Images on which a width is calibrated that is not yet."""
FEWEST = 50
"""Images on which quality without labels is measured."""


@dataclass(frozen=True)
class Evaluation:
    """What was found at each width."""

    results: list[WidthResult]
    scores: dict[Width, dict[str, Score]]
    """By width, then by "knn", "linear" or "finetuned"."""
    probes: dict[Width, Probe] = field(default_factory=dict)
    networks: dict[Width, nn.Module] = field(default_factory=dict)
    """The fine-tuned ones, which give logits; on the CPU."""
    few_labels: list[FewLabels] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    """Images that could not be read, met when they were needed."""


@dataclass(frozen=True)
class EvaluationTask:
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

    def results(
        self,
        scores: Mapping[Width, Mapping[str, Score]],
        floors: Mapping[Width, Mapping[str, Score]] | None = None,
    ) -> list[WidthResult]:
        """Scores beside the cost of each width, and beside those of the untrained network."""
        results = []
        for width, kinds in scores.items():
            price = cost(self.net, width, size=self.size)
            values = {kind: score.top1 for kind, score in kinds.items()}
            values |= {f"{kind}_top5": score.top5 for kind, score in kinds.items() if score.top5 is not None}
            values |= {f"{kind}_untrained": score.top1 for kind, score in (floors or {}).get(width, {}).items()}
            results.append(WidthResult(width, price.params, price.macs, **values))
        return results


def prepare(
    net: Slimmable,
    train: Images,
    test: Images,
    widths: Sequence[AnyWidth] | None = None,
    size: int | None = None,
    labelled: bool = True,
) -> EvaluationTask:
    """Check everything, and calibrate the widths that are not.

    Args:
        net: The network; images are brought to its device, if they are not too many for it.
        train: Labelled images to learn from.
        test: Labelled images to judge by.
        widths: Which ones, each counted once (default: the paper's nine, as far as the network has them).
        size: Show the network images of another size than its own.
        labelled: Whether labels are needed. Without them, narrower networks are compared with the full one instead.
    """
    if labelled:
        check_labels(train, test)
    chosen = list(dict.fromkeys(map(net.check, net.among(NINE_WIDTHS) if widths is None else widths)))
    preprocessing = Preprocessing.of(net, size)
    device = next(net.full.parameters()).device
    train, test = (images.to(device) for images in (train, test))
    calibrate_missing(net, train, chosen if labelled else {FULL, *chosen}, preprocessing)
    classes = len(train.classes or ()) or (0 if train.labels is None else int(train.labels.max()) + 1)
    return EvaluationTask(net, train, test, chosen, preprocessing, classes)


def calibrate_missing(net: Slimmable, train: Images, widths: Iterable[Width], preprocessing: Preprocessing) -> None:
    """Collect batch-norm statistics of the widths that have none, on training images as they will be seen."""
    if missing := [width for width in widths if not net.calibrated(width)]:
        chosen = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))[:CALIBRATION].sort().values
        batches = train.subset(chosen).batches(preprocessing)
        calibrate(net, (batch.views[0] for batch in batches), missing)


def check_labels(train: Images, test: Images) -> None:
    """Raises:
    UserError: Images have no labels, or not those that a classifier can be trained and tested on.
    """
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
