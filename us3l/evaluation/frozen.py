"""The fast protocol: kNN and the exact linear probe on frozen features, which are computed once for each width."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from us3l.data.images import Images
from us3l.data.sources import ImageFiles
from us3l.evaluation.features import Features, embed_all
from us3l.evaluation.knn import knn
from us3l.evaluation.linear import Probe, choose_penalty, linear_probe
from us3l.evaluation.scoring import mean_score, score
from us3l.evaluation.tasks import Evaluation, EvaluationTask, calibrate_missing, prepare
from us3l.run.evaluations import FewLabels, Score
from us3l.slimmable import Slimmable
from us3l.system.errors import UserError
from us3l.system.progress import Advance
from us3l.width import AnyWidth, Width

FEATURE_BYTES = 2**31  # of features that are held at a time when images are decoded once for several widths


def evaluate_frozen(
    net: Slimmable,
    train: Images,
    test: Images,
    widths: Sequence[AnyWidth] | None = None,
    size: int | None = None,
    floor: bool = True,
    label_shares: Sequence[float] = (),
    seeds: int = 1,
    progress: Advance | None = None,
) -> Evaluation:
    """kNN and the exact linear probe at each width, computed where the network is.

    Args:
        net: The network, which stays as it is, but for the calibration of widths that have none.
        train: Labelled images to learn from.
        test: Labelled images to judge by.
        widths: Which ones (default: the paper's nine, as far as the network has them).
        size: Show the network images of another size than its own.
        floor: Also evaluate the same network untrained.
        label_shares: Also learn probes from these shares of every class's labels.
        seeds: Repeat the choice of labels for each share this many times.
        progress: Called with each number of images embedded, of `images_to_embed(...)` in all.
    """
    for share in label_shares:
        if not 0 < share <= 1:
            raise UserError(f"a share of the labels is above 0 and at most 1, not {share:g}")
    task = prepare(net, train, test, widths, size)
    scores: dict[Width, dict[str, Score]] = {}
    floors: dict[Width, dict[str, Score]] = {}
    probes, few, damaged = {}, [], dict[str, None]()
    for width, known, asked in features(net, task, progress):
        scores[width], probes[width] = judge(known, asked, task.classes)
        few += [few_labels(width, share, known, asked, task.classes, seeds) for share in label_shares]
        damaged |= dict.fromkeys([*known.damaged, *asked.damaged])
    if floor:
        start = untrained(net)
        calibrate_missing(start, task.train, task.widths, task.preprocessing)
        for width, known, asked in features(start, task, progress):
            floors[width], _ = judge(known, asked, task.classes)
    return Evaluation(task.results(scores, floors), scores, probes, few_labels=few, damaged=list(damaged))


def images_to_embed(train: Images, test: Images, widths: Sequence[Width], floor: bool = True) -> int:
    """What `evaluate_frozen` reports as progress in all."""
    return (len(train) + len(test)) * len(widths) * (2 if floor else 1)


def features(
    net: Slimmable, task: EvaluationTask, progress: Advance | None
) -> Iterator[tuple[Width, Features, Features]]:
    """Of each width, those of the training and of the test images. Files are decoded once for several widths."""
    at_once = 1
    if isinstance(task.train, ImageFiles):
        channels = 4 * 2048  # bytes that a feature vector has at most, in the backbones there are
        at_once = max(1, FEATURE_BYTES // (channels * (len(task.train) + len(task.test))))
    for first in range(0, len(task.widths), at_once):
        group = task.widths[first : first + at_once]
        networks = [net.at(width) for width in group]
        known, asked = (
            embed_all(networks, images, task.preprocessing, progress=progress) for images in (task.train, task.test)
        )
        for position, width in enumerate(group):
            yield (
                width,
                Features([known.values[position]], known.labels, known.damaged),
                Features([asked.values[position]], asked.labels, asked.damaged),
            )


def judge(known: Features, asked: Features, classes: int) -> tuple[dict[str, Score], Probe]:
    """kNN and linear probe on one width's features."""
    neighbours = knn(known.values[0], known.labels, asked.values[0], num_classes=classes)
    probe = best_probe(known.values[0], known.labels, classes)
    return {
        "knn": score(neighbours, asked.labels, classes),
        "linear": score(probe.scores(asked.values[0]), asked.labels, classes),
    }, probe


def best_probe(values: Tensor, labels: Tensor, classes: int) -> Probe:
    """The linear probe with the penalty that suits held-out training images best."""
    l2, temperature = choose_penalty(values, labels, classes)
    return replace(linear_probe(values, labels, classes, l2=l2), temperature=temperature)


def few_labels(width: Width, share: float, known: Features, asked: Features, classes: int, seeds: int) -> FewLabels:
    """The linear probe learned from a share of the labels."""
    scores = []
    for seed in range(seeds):
        chosen = share_of_each_class(known.labels, share, seed)
        probe = best_probe(known.values[0][chosen], known.labels[chosen], classes)
        scores.append(score(probe.scores(asked.values[0]), asked.labels, classes))
    return FewLabels(width, share, len(chosen), mean_score(scores, len(asked.labels)))


def share_of_each_class(labels: Tensor, share: float, seed: int) -> Tensor:
    """Rising indices of a random share of every class, at least one image of each."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed)).to(labels.device)
    parts = [order[labels[order] == label] for label in labels.unique()]
    return torch.cat([part[: max(1, round(share * len(part)))] for part in parts]).sort().values


def untrained(net: Slimmable) -> Slimmable:
    """The same network before any training, as its run's seed made it."""
    training = net.metadata.get("training")
    seed = training.get("seed") if isinstance(training, dict) else None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed if isinstance(seed, int) else 0)
        start = Slimmable(net.family, net.min_width, net.switchable or None).to(next(net.full.parameters()).device)
    start.metadata = net.metadata
    return start
