"""What a network is worth at each width: kNN and linear probe on frozen features, beside the untrained network's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from us3l.calibration import calibrate
from us3l.costs import cost
from us3l.data.sources import ImageSet
from us3l.data.views import evaluation_view
from us3l.errors import UserError
from us3l.evaluation.features import embed
from us3l.evaluation.knn import knn_accuracy
from us3l.evaluation.linear import linear_accuracy
from us3l.evaluation.results import WidthResult
from us3l.slimmable import Slimmable

NINE_WIDTHS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.25)
CALIBRATION = 2048


def evaluate(
    net: Slimmable,
    train: ImageSet,
    test: ImageSet,
    widths: Sequence[float] = NINE_WIDTHS,
    size: int = 32,
    floor: bool = True,
    progress: Callable[[int], None] | None = None,
) -> list[WidthResult]:
    """Accuracies in percent at each width. `floor` adds those of the same network untrained.

    `progress` is called with each number of images embedded, of `images_to_embed(...)` in all.
    """
    check_labels(train, test)
    for width in widths:
        net.check(width)
    start = untrained(net) if floor else None
    for network in (net, start):
        missing = [width for width in widths if network and not network.calibrated(width)]
        if network and missing:
            chosen = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))[:CALIBRATION]
            calibrate(network, evaluation_view(train.images[chosen], size), missing)
    results = []
    for width in widths:
        price = cost(net.skeleton(width), (3, size, size))
        knn, linear = accuracies(net, train, test, width, size, progress)
        floors = accuracies(start, train, test, width, size, progress) if start else (None, None)
        results.append(WidthResult(width, price.params, price.macs, knn, linear, *floors))
    return results


def accuracies(
    net: Slimmable, train: ImageSet, test: ImageSet, width: float, size: int, progress: Callable[[int], None] | None
) -> tuple[float, float]:
    """kNN and linear-probe accuracy of one width, in percent."""
    assert train.labels is not None
    assert test.labels is not None
    network = net.at(width)
    known = embed(network, train.images, size, progress=progress)
    asked = embed(network, test.images, size, progress=progress)
    return (
        knn_accuracy(known, train.labels, asked, test.labels),
        linear_accuracy(known, train.labels, asked, test.labels),
    )


def images_to_embed(train: ImageSet, test: ImageSet, widths: Sequence[float], floor: bool = True) -> int:
    return (len(train) + len(test)) * len(widths) * (2 if floor else 1)


def untrained(net: Slimmable) -> Slimmable:
    """The same network before any training, as its run's seed made it."""
    training = net.metadata.get("training")
    seed = training.get("seed") if isinstance(training, dict) else None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed if isinstance(seed, int) else 0)
        return Slimmable(net.family, net.min_width, net.switchable or None).to(next(net.full.parameters()).device)


def check_labels(train: ImageSet, test: ImageSet) -> None:
    for image_set in (train, test):
        if image_set.labels is None:
            raise UserError(
                f"{image_set.name} has no labels, and accuracy needs them: put the images of each class "
                "into a sub-folder of its own, at least two of these, or give another --data"
            )
    assert train.labels is not None
    if len(train.labels.unique()) < 2:
        raise UserError(f"{train.name} has one class only: there is nothing to tell apart")
    assert test.labels is not None
    if unseen := sorted(set(test.labels.tolist()) - set(train.labels.tolist())):
        names = ", ".join(test.classes[label] if test.classes else str(label) for label in unseen[:5])
        raise UserError(f"{len(unseen)} classes of the test images have no training image ({names}): add some")
