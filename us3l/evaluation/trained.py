"""Protocols of classifiers trained by gradient descent: the paper's linear probe, fine-tuning, and a run's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from us3l.data.images import Images
from us3l.evaluation.classifiers import finetune, train_probes
from us3l.evaluation.features import embed_all
from us3l.evaluation.linear import Probe
from us3l.evaluation.protocols import ProbeKind, Training, finetuning, paper_probe, paper_side, usual_probe
from us3l.evaluation.scoring import mean_score, score
from us3l.evaluation.tasks import Evaluation, prepare
from us3l.run.classifiers import ElasticClassifier
from us3l.slimmable import Slimmable
from us3l.system.errors import UserError
from us3l.system.progress import Advance
from us3l.width import AnyWidth, Width


def evaluate_paper(
    net: Slimmable,
    train: Images,
    test: Images,
    widths: Sequence[AnyWidth] | None = None,
    size: int | None = None,
    training: Training | None = None,
    seeds: int = 1,
    progress: Advance | None = None,
) -> Evaluation:
    """The paper's linear probe at each width: trained on random crops, all widths on the same ones.

    Args:
        net: The network, which stays as it is, but for the calibration of widths that have none.
        train: Labelled images to learn from.
        test: Labelled images to judge by.
        widths: Which ones (default: the paper's nine, as far as the network has them).
        size: Show the network images of another size than its own.
        training: Settings (default: the paper's for this data and network, see `probe_kind`).
        seeds: Train this many times. The probes that are handed back are those of the first.
        progress: Called with each number of images seen, of `images_to_train(...)` in all.
    """
    task = prepare(net, train, test, widths, size)
    training = training or paper_probe(probe_kind(net, train), task.size)
    preprocessing = replace(task.preprocessing, resize=paper_side(task.size))
    networks = {width: net.at(width) for width in task.widths}
    trained = [
        train_probes(networks, task.train, task.classes, preprocessing, training, seed, progress)
        for seed in range(seeds)
    ]
    asked = embed_all(list(networks.values()), task.test, preprocessing, progress=progress)
    scores = {}
    for width, values in zip(task.widths, asked.values, strict=True):
        of_seeds = [score(probes[width].scores(values), asked.labels, task.classes) for probes in trained]
        scores[width] = {"linear": mean_score(of_seeds, len(asked.labels))}
    return Evaluation(task.results(scores), scores, trained[0], damaged=asked.damaged)


def evaluate_finetuned(
    net: Slimmable,
    train: Images,
    test: Images,
    widths: Sequence[AnyWidth] | None = None,
    size: int | None = None,
    training: Training | None = None,
    seeds: int = 1,
    progress: Advance | None = None,
) -> Evaluation:
    """The network of each width, carved out and trained with the labels. `net` stays as it is.

    Args:
        net: The network, which stays as it is, but for the calibration of widths that have none.
        train: Labelled images to learn from.
        test: Labelled images to judge by.
        widths: Which ones (default: the paper's nine, as far as the network has them).
        size: Show the network images of another size than its own.
        training: Settings (default: `finetuning(size)`).
        seeds: Train this many times. The networks that are handed back are those of the first.
        progress: Called with each number of images seen, of `images_to_train(...)` in all.
    """
    task = prepare(net, train, test, widths, size)
    training = training or finetuning(task.size)
    scores, networks, damaged = {}, {}, dict[str, None]()
    for width in task.widths:
        of_seeds = []
        for seed in range(seeds):
            whole = finetune(net.carve(width), task.train, task.classes, task.preprocessing, training, seed, progress)
            asked = embed_all([whole], task.test, task.preprocessing, progress=progress)
            of_seeds.append(score(asked.values[0], asked.labels, task.classes))
            damaged |= dict.fromkeys(asked.damaged)
            if seed == 0:
                networks[width] = whole.cpu()
        scores[width] = {"finetuned": mean_score(of_seeds, len(asked.labels))}
    return Evaluation(task.results(scores), scores, networks=networks, damaged=list(damaged))


def evaluate_classifier(
    net: Slimmable,
    train: Images,
    test: Images,
    classifier: ElasticClassifier,
    widths: Sequence[AnyWidth] | None = None,
    size: int | None = None,
    progress: Advance | None = None,
) -> Evaluation:
    """The classifier that a network was trained with, at each width. Nothing is learned.

    Args:
        net: The network, which stays as it is, but for the calibration of widths that have none.
        train: Images to calibrate on.
        test: Labelled images to judge by.
        classifier: The linear layer of all widths.
        widths: Which ones (default: the paper's nine, as far as the network has them).
        size: Show the network images of another size than its own.
        progress: Called with each number of images seen, of `len(widths) * len(test)` in all.
    """
    if test.classes is not None and test.classes != classifier.classes:
        raise UserError(f"{test.name} has other classes than {classifier.data}, which the classifier was trained on")
    task = prepare(net, train, test, widths, size)
    asked = embed_all([net.at(width) for width in task.widths], task.test, task.preprocessing, progress=progress)
    scores = {}
    for width, values in zip(task.widths, asked.values, strict=True):
        weight, bias = classifier.at(values.shape[1])
        logits = Probe(weight.to(values), bias.to(values)).scores(values)
        scores[width] = {"finetuned": score(logits, asked.labels, len(classifier.classes))}
    return Evaluation(task.results(scores), scores, damaged=asked.damaged)


def images_to_train(
    train: Images, test: Images, widths: Sequence[Width], training: Training, seeds: int, whole: bool
) -> int:
    """What `evaluate_paper`, or with `whole` networks `evaluate_finetuned`, reports as progress in all."""
    return len(widths) * (seeds * training.epochs * len(train) + (seeds if whole else 1) * len(test))


def probe_kind(net: Slimmable, train: Images) -> ProbeKind:
    """The paper's probe for a network and the images to learn from."""
    return usual_probe(train.name, net.family.transformer)
