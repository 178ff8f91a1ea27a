"""What a network is worth at each width: classifiers on its frozen features, or the whole network trained further."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from us3l.calibration import calibrate
from us3l.costs import cost
from us3l.data.batches import Images, evaluation_batches
from us3l.data.preprocessing import Preprocessing
from us3l.data.sources import ImageFiles
from us3l.errors import UserError
from us3l.evaluation.features import Features, embed_all
from us3l.evaluation.knn import knn
from us3l.evaluation.linear import Probe, choose_l2, linear_probe
from us3l.evaluation.protocols import ProbeKind, Training, finetuning, paper_probe, paper_side, usual_probe
from us3l.evaluation.results import mean_score, score
from us3l.evaluation.training import finetune, train_probes
from us3l.run.evaluations import FewLabels, Score, WidthResult
from us3l.slimmable import Slimmable

NINE_WIDTHS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.25)
CALIBRATION = 2048
FEATURE_BYTES = 2**31  # of features that are held at a time when images are decoded once for several widths

Progress = Callable[[int], None] | None


@dataclass(frozen=True)
class Evaluation:
    """What was found at each width."""

    results: list[WidthResult]
    scores: dict[float, dict[str, Score]]
    """By width, then by "knn", "linear" or "finetuned"."""
    probes: dict[float, Probe] = field(default_factory=dict)
    few_labels: list[FewLabels] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    """Images that could not be read, met when they were needed."""


def evaluate(
    net: Slimmable,
    train: Images,
    test: Images,
    widths: Sequence[float] = NINE_WIDTHS,
    size: int = 32,
    floor: bool = True,
    label_shares: Sequence[float] = (),
    seeds: int = 1,
    progress: Progress = None,
) -> Evaluation:
    """kNN and the exact linear probe at each width. `floor` adds those of the same network untrained.

    For each of `label_shares` a probe learns from that share of every class's labels, chosen anew for each of `seeds`.
    `progress` is called with each number of images embedded, of `images_to_embed(...)` in all.
    """
    widths, classes = prepare(net, train, test, widths, size)
    for share in label_shares:
        if not 0 < share <= 1:
            raise UserError(f"a share of the labels is above 0 and at most 1, not {share:g}")
    start = untrained(net) if floor else None
    if start:
        calibrate_missing(start, train, widths, size)
    scores: dict[float, dict[str, Score]] = {}
    floors: dict[float, dict[str, Score]] = {}
    probes, few, damaged = {}, [], dict[str, None]()
    for width, known, asked in features(net, train, test, widths, size, progress):
        scores[width], probes[width] = judge(known, asked, classes)
        few += [few_labels(width, share, known, asked, classes, seeds) for share in label_shares]
        damaged |= dict.fromkeys([*known.damaged, *asked.damaged])
    for width, known, asked in features(start, train, test, widths, size, progress) if start else ():
        floors[width], _ = judge(known, asked, classes)
    return Evaluation(as_results(net, size, scores, floors), scores, probes, few, list(damaged))


def evaluate_paper(
    net: Slimmable,
    train: Images,
    test: Images,
    widths: Sequence[float] = NINE_WIDTHS,
    size: int = 32,
    training: Training | None = None,
    seeds: int = 1,
    progress: Progress = None,
) -> Evaluation:
    """The paper's linear probe at each width: trained by gradient descent on random crops, all widths on the same ones.

    The probes that are handed back are those of the first seed.
    """
    widths, classes = prepare(net, train, test, widths, size)
    training = training or paper_probe(probe_kind(net, train), size)
    preprocessing = replace(Preprocessing.of(net, size), resize=paper_side(size))
    networks = {width: net.at(width) for width in widths}
    trained = [train_probes(networks, train, classes, size, training, seed, progress) for seed in range(seeds)]
    asked = embed_all(list(networks.values()), test, preprocessing, progress=progress)
    scores = {}
    for width, values in zip(widths, asked.values, strict=True):
        found = [score(probes[width].scores(values), asked.labels, classes) for probes in trained]
        scores[width] = {"linear": mean_score(found, len(asked.labels))}
    return Evaluation(as_results(net, size, scores), scores, trained[0], damaged=asked.damaged)


def evaluate_finetuned(
    net: Slimmable,
    train: Images,
    test: Images,
    widths: Sequence[float] = NINE_WIDTHS,
    size: int = 32,
    training: Training | None = None,
    seeds: int = 1,
    progress: Progress = None,
) -> Evaluation:
    """The network of each width, carved out and trained as a whole with the labels. `net` stays as it is."""
    widths, classes = prepare(net, train, test, widths, size)
    training = training or finetuning(size)
    scores, damaged = {}, dict[str, None]()
    for width in widths:
        found = []
        for seed in range(seeds):
            whole = finetune(net.carve(width), train, classes, size, training, seed, progress)
            asked = embed_all([whole], test, Preprocessing.of(net, size), progress=progress)
            found.append(score(asked.values[0], asked.labels, classes))
            damaged |= dict.fromkeys(asked.damaged)
        scores[width] = {"finetuned": mean_score(found, len(asked.labels))}
    return Evaluation(as_results(net, size, scores), scores, damaged=list(damaged))


def images_to_embed(train: Images, test: Images, widths: Sequence[float], floor: bool = True) -> int:
    return (len(train) + len(test)) * len(widths) * (2 if floor else 1)


def images_to_train(
    train: Images, test: Images, widths: Sequence[float], training: Training, seeds: int, whole: bool
) -> int:
    """What `evaluate_paper`, or with `whole` networks `evaluate_finetuned`, reports as progress in all."""
    return len(widths) * (seeds * training.epochs * len(train) + (seeds if whole else 1) * len(test))


def prepare(net: Slimmable, train: Images, test: Images, widths: Sequence[float], size: int) -> tuple[list[float], int]:
    """Check everything, calibrate what is not, and tell the widths, each once, and the number of classes."""
    check_labels(train, test)
    for width in widths:
        net.check(width)
    calibrate_missing(net, train, widths, size)
    assert train.labels is not None
    return list(dict.fromkeys(widths)), len(train.classes or ()) or int(train.labels.max()) + 1


def probe_kind(net: Slimmable, train: Images) -> ProbeKind:
    """The paper's probe for a network and the images to learn from. Vision transformers are those of timm's names."""
    return usual_probe(train.name, hasattr(net.full, "patch_embed"))


def calibrate_missing(net: Slimmable, train: Images, widths: Sequence[float], size: int) -> None:
    if missing := [width for width in widths if not net.calibrated(width)]:
        chosen = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))[:CALIBRATION].sort().values
        batches = evaluation_batches(train.subset(chosen), Preprocessing.of(net, size))
        calibrate(net, (batch.views[0] for batch in batches), missing)


def features(
    net: Slimmable, train: Images, test: Images, widths: Sequence[float], size: int, progress: Progress
) -> Iterator[tuple[float, Features, Features]]:
    """Of each width, those of the training and of the test images. Files are decoded once for several widths."""
    at_once, preprocessing = 1, Preprocessing.of(net, size)
    if isinstance(train, ImageFiles):
        channels = 4 * 2048  # bytes a feature vector has at most, in the backbones there are
        at_once = max(1, FEATURE_BYTES // (channels * (len(train) + len(test))))
    for first in range(0, len(widths), at_once):
        group = widths[first : first + at_once]
        networks = [net.at(width) for width in group]
        known, asked = (embed_all(networks, images, preprocessing, progress=progress) for images in (train, test))
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
    return linear_probe(values, labels, classes, l2=choose_l2(values, labels, classes))


def few_labels(width: float, share: float, known: Features, asked: Features, classes: int, seeds: int) -> FewLabels:
    found = []
    for seed in range(seeds):
        chosen = share_of_each_class(known.labels, share, seed)
        probe = best_probe(known.values[0][chosen], known.labels[chosen], classes)
        found.append(score(probe.scores(asked.values[0]), asked.labels, classes))
    return FewLabels(width, share, len(chosen), mean_score(found, len(asked.labels)))


def share_of_each_class(labels: Tensor, share: float, seed: int) -> Tensor:
    """Rising indices of a random share of every class, at least one image of each."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed)).to(labels.device)
    parts = [order[labels[order] == label] for label in labels.unique()]
    return torch.cat([part[: max(1, round(share * len(part)))] for part in parts]).sort().values


def as_results(
    net: Slimmable,
    size: int,
    scores: Mapping[float, Mapping[str, Score]],
    floors: Mapping[float, Mapping[str, Score]] | None = None,
) -> list[WidthResult]:
    results = []
    for width, found in scores.items():
        price = cost(net.skeleton(width), (3, size, size))
        values = {kind: one.top1 for kind, one in found.items()}
        values |= {f"{kind}_top5": one.top5 for kind, one in found.items() if one.top5 is not None}
        values |= {f"{kind}_untrained": one.top1 for kind, one in (floors or {}).get(width, {}).items()}
        results.append(WidthResult(width, price.params, price.macs, **values))
    return results


def untrained(net: Slimmable) -> Slimmable:
    """The same network before any training, as its run's seed made it."""
    training = net.metadata.get("training")
    seed = training.get("seed") if isinstance(training, dict) else None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed if isinstance(seed, int) else 0)
        start = Slimmable(net.family, net.min_width, net.switchable or None).to(next(net.full.parameters()).device)
    start.metadata = net.metadata
    return start


def check_labels(train: Images, test: Images) -> None:
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
        raise UserError(
            f"{len(unseen)} classes of the test images have no training image ({names}): add some, "
            "or let it learn from more of them (--train-images)"
        )
