"""The fast protocol: kNN and the exact linear probe on frozen features, which are computed once for each width."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from us3l.data.sources import ImageFiles
from us3l.evaluation.features import Features, embed_all
from us3l.evaluation.knn import knn
from us3l.evaluation.linear import Probe, choose_penalty, linear_probe
from us3l.evaluation.prepare import Evaluation, EvaluationInputs, calibrate_missing
from us3l.evaluation.scoring import mean_score, score
from us3l.run.evaluations import FewLabels, Score
from us3l.slimmable import Slimmable
from us3l.system.devices import moved
from us3l.system.progress import Advance
from us3l.width import Width

FEATURE_BYTES = 2**31  # of features that are held at a time when images are decoded once for several widths


def evaluate_fast(
    prepared: EvaluationInputs,
    start: Slimmable | None = None,
    label_shares: Sequence[float] = (),
    seeds: int = 1,
    progress: Advance | None = None,
) -> Evaluation:
    """Measure kNN and the exact linear probe at each width, where the network is.

    Args:
        prepared: The network, labelled images and widths.
        start: The network that training began with, evaluated as the floor (default: no floor).
        label_shares: Also learn probes from these shares of every class's labels.
        seeds: Repeat the choice of labels for each share this many times.
        progress: Called with each number of images embedded, of `images_to_embed(...)` in all.
    """
    scores: dict[Width, dict[str, Score]] = {}
    floors: dict[Width, dict[str, Score]] = {}
    probes, few, damaged = {}, [], dict[str, None]()
    for width, learned, tested in features(prepared.net, prepared, progress):
        scores[width], probes[width] = judge(learned, tested, prepared.classes)
        few += [few_labels(width, share, learned, tested, prepared.classes, seeds) for share in label_shares]
        damaged |= dict.fromkeys([*learned.damaged, *tested.damaged])
    if start is not None:
        with moved(start, next(prepared.net.full.parameters()).device):
            calibrate_missing(start, prepared.train, prepared.widths, prepared.preprocessing)
            for width, learned, tested in features(start, prepared, progress):
                floors[width], _ = judge(learned, tested, prepared.classes)
    untrained = {width: {metric: score.top1 for metric, score in floor.items()} for width, floor in floors.items()}
    rows = [prepared.row(width, scores=scores[width], untrained=untrained.get(width, {})) for width in scores]
    return Evaluation(rows, few, probes, damaged=list(damaged))


def images_to_embed(prepared: EvaluationInputs, floor: bool = True) -> int:
    """Return what `evaluate_fast` reports as progress in all."""
    return (len(prepared.train) + len(prepared.test)) * len(prepared.widths) * (2 if floor else 1)


def features(
    net: Slimmable, prepared: EvaluationInputs, progress: Advance | None = None
) -> Iterator[tuple[Width, Features, Features]]:
    """Yield each width with its features of the training and of the test images.

    Files are decoded once for several widths.
    """
    at_once, train, test = 1, prepared.train, prepared.test
    if isinstance(train, ImageFiles):
        channels = 4 * 2048  # bytes that a feature vector has at most, in the backbones there are
        at_once = max(1, FEATURE_BYTES // (channels * (len(train) + len(test))))
    for first in range(0, len(prepared.widths), at_once):
        group = prepared.widths[first : first + at_once]
        networks = [net.at(width) for width in group]
        learned, tested = (
            embed_all(networks, images, prepared.preprocessing, progress=progress) for images in (train, test)
        )
        for position, width in enumerate(group):
            yield (
                width,
                Features([learned.values[position]], learned.labels, learned.damaged),
                Features([tested.values[position]], tested.labels, tested.damaged),
            )


def judge(learned: Features, tested: Features, classes: int) -> tuple[dict[str, Score], Probe]:
    """Return the scores of kNN and of the linear probe on one width's features, and the probe."""
    neighbours = knn(learned.values[0], learned.labels, tested.values[0], num_classes=classes)
    probe = best_probe(learned.values[0], learned.labels, classes)
    return {
        "knn": score(neighbours, tested.labels, classes),
        "linear": score(probe.scores(tested.values[0]), tested.labels, classes),
    }, probe


def best_probe(values: Tensor, labels: Tensor, classes: int) -> Probe:
    """Return the linear probe with the penalty that suits held-out training images best."""
    l2, temperature, threshold = choose_penalty(values, labels, classes)
    probe = linear_probe(values, labels, classes, l2=l2)
    return replace(probe, temperature=temperature, threshold=threshold)


def few_labels(width: Width, share: float, learned: Features, tested: Features, classes: int, seeds: int) -> FewLabels:
    """Return the score of the linear probe learned from a share of the labels."""
    scores = []
    for seed in range(seeds):
        chosen = share_of_each_class(learned.labels, share, seed)
        probe = best_probe(learned.values[0][chosen], learned.labels[chosen], classes)
        scores.append(score(probe.scores(tested.values[0]), tested.labels, classes))
    return FewLabels(width, share, len(chosen), mean_score(scores, len(tested.labels)))


def share_of_each_class(labels: Tensor, share: float, seed: int) -> Tensor:
    """Return rising indices of a random share of every class, at least one image of each."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed)).to(labels.device)
    parts = [order[labels[order] == label] for label in labels.unique()]
    return torch.cat([part[: max(1, round(share * len(part)))] for part in parts]).sort().values


def untrained(net: Slimmable) -> Slimmable:
    """Return the same network with random weights, those that its run's seed made."""
    training = net.metadata.get("training")
    seed = training.get("seed") if isinstance(training, dict) else None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed if isinstance(seed, int) else 0)
        start = Slimmable(net.family, net.min_width, net.switchable or None)
    start.metadata = net.metadata
    return start
