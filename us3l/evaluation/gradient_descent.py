"""Protocols with classifiers trained by gradient descent on random crops: the paper's linear probe, whole networks,
and the classifier that a run was trained with."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from us3l.data.images import Images, Step
from us3l.data.preprocessing import Preprocessing
from us3l.evaluation.features import embed_all
from us3l.evaluation.linear import Probe
from us3l.evaluation.prepare import Evaluation, EvaluationInputs
from us3l.evaluation.protocols import Training, paper_side
from us3l.evaluation.scoring import mean_score, score
from us3l.run.linear_maps import ElasticClassifier
from us3l.system.devices import for_doubles
from us3l.system.errors import UserError
from us3l.system.optional import need
from us3l.system.progress import Advance
from us3l.system.seeds import seeded
from us3l.tensors import batch_norms
from us3l.width import Width


def evaluate_paper(
    prepared: EvaluationInputs, training: Training, seeds: int = 1, progress: Advance | None = None
) -> Evaluation:
    """Measure the paper's linear probe at each width: trained on random crops, all widths on the same ones.

    Args:
        prepared: The network, labelled images and widths.
        training: How probes are trained.
        seeds: Train this many times. The probes that are handed back are those of the first.
        progress: Called with each number of images seen, of `images_to_train(...)` in all.
    """
    preprocessing = replace(prepared.preprocessing, resize=paper_side(prepared.size))
    networks = {width: prepared.net.at(width) for width in prepared.widths}
    trained = [
        train_probes(networks, prepared.train, prepared.classes, preprocessing, training, seed, progress)
        for seed in range(seeds)
    ]
    tested = embed_all(list(networks.values()), prepared.test, preprocessing, progress=progress)
    rows = []
    for width, values in zip(prepared.widths, tested.values, strict=True):
        of_seeds = [score(probes[width].scores(values), tested.labels, prepared.classes) for probes in trained]
        rows.append(prepared.row(width, scores={"linear": mean_score(of_seeds, len(tested.labels))}))
    return Evaluation(rows, probes=trained[0], damaged=tested.damaged)


def evaluate_finetuned(
    prepared: EvaluationInputs, training: Training, seeds: int = 1, progress: Advance | None = None
) -> Evaluation:
    """Measure the network of each width, carved out and trained with the labels.

    Args:
        prepared: The network, which stays as it is, labelled images and widths.
        training: How networks are trained.
        seeds: Train this many times. The networks that are handed back are those of the first.
        progress: Called with each number of images seen, of `images_to_train(...)` in all.
    """
    preprocessing, classes = prepared.preprocessing, prepared.classes
    rows, networks, damaged = [], {}, dict[str, None]()
    for width in prepared.widths:
        of_seeds = []
        for seed in range(seeds):
            plain = prepared.net.carve(width)
            whole = finetune(plain, prepared.train, classes, preprocessing, training, seed, progress)
            tested = embed_all([whole], prepared.test, preprocessing, progress=progress)
            of_seeds.append(score(tested.values[0], tested.labels, classes))
            damaged |= dict.fromkeys(tested.damaged)
            if seed == 0:
                networks[width] = whole.cpu()
        rows.append(prepared.row(width, scores={"finetuned": mean_score(of_seeds, len(tested.labels))}))
    return Evaluation(rows, networks=networks, damaged=list(damaged))


def evaluate_classifier(
    prepared: EvaluationInputs, classifier: ElasticClassifier, progress: Advance | None = None
) -> Evaluation:
    """Measure the classifier that a network was trained with, at each width. Nothing is learned.

    Args:
        prepared: The network, labelled images and widths.
        classifier: The linear layer of all widths.
        progress: Called with each number of images seen, of `len(widths) * len(test)` in all.
    """
    net, test = prepared.net, prepared.test
    if test.classes is not None and test.classes != classifier.classes:
        raise UserError(f"{test.name} has other classes than {classifier.data}, which the classifier was trained on")
    tested = embed_all([net.at(width) for width in prepared.widths], test, prepared.preprocessing, progress=progress)
    rows = []
    for width, values in zip(prepared.widths, tested.values, strict=True):
        weight, bias = classifier.at(values.shape[1])
        logits = Probe(weight.to(values), bias.to(values)).scores(values)
        rows.append(prepared.row(width, scores={"finetuned": score(logits, tested.labels, len(classifier.classes))}))
    return Evaluation(rows, damaged=tested.damaged)


def images_to_train(prepared: EvaluationInputs, training: Training, seeds: int, whole: bool) -> int:
    """Return what `evaluate_paper`, or with `whole` networks `evaluate_finetuned`, reports as progress in all."""
    train, test = len(prepared.train), len(prepared.test)
    return len(prepared.widths) * (seeds * training.epochs * train + (seeds if whole else 1) * test)


def train_probes(
    networks: Mapping[Width, nn.Module],
    train: Images,
    num_classes: int,
    preprocessing: Preprocessing,
    training: Training,
    seed: int = 0,
    progress: Advance | None = None,
) -> dict[Width, Probe]:
    """Train linear probes on frozen networks, all on the same crops; `progress` gets the images each network saw."""
    heads = {width: new_head(network, num_classes, preprocessing.size, seed) for width, network in networks.items()}
    pairs = [(network, heads[width]) for width, network in networks.items()]
    weights = [parameter for head in heads.values() for parameter in head.parameters()]
    descend(pairs, weights, train, preprocessing, training, seed, progress)
    device = for_doubles(next(iter(heads.values())).weight.device)
    return {
        width: Probe(head.weight.detach().to(device), head.bias.detach().to(device)) for width, head in heads.items()
    }


def finetune(
    network: nn.Module,
    train: Images,
    num_classes: int,
    preprocessing: Preprocessing,
    training: Training,
    seed: int = 0,
    progress: Advance | None = None,
) -> nn.Module:
    """Return the network, which is changed, with a new linear layer at its end, trained as a whole; in eval mode."""
    head = new_head(network, num_classes, preprocessing.size, seed)
    whole = nn.Sequential(network, head).train()
    weights = [p for p in whole.parameters() if p.requires_grad]
    descend([(network, head)], weights, train, preprocessing, training, seed, progress)
    return whole.eval()


def new_head(network: nn.Module, num_classes: int, size: int, seed: int) -> nn.Linear:
    weight = next(network.parameters())
    with torch.no_grad():
        head = nn.Linear(network.eval()(weight.new_zeros(1, 3, size, size)).shape[1], num_classes).to(weight)
        head.weight.copy_(0.01 * torch.randn(head.weight.shape, generator=torch.Generator().manual_seed(seed)))
        head.bias.zero_()
    return head


def descend(
    pairs: Sequence[tuple[nn.Module, nn.Linear]],
    weights: list[nn.Parameter],
    train: Images,
    preprocessing: Preprocessing,
    training: Training,
    seed: int,
    progress: Advance | None,
) -> None:
    """Minimise the cross-entropy of every network with its head. Networks in eval mode are frozen."""
    optimiser = make_optimiser(weights, training)
    device = weights[0].device
    # Batch norm in training needs the variance of two images; damaged ones can leave a batch with fewer.
    needed = 2 if any(network.training and batch_norms(network) for network, _ in pairs) else 1
    if min(training.batch_size, len(train)) < needed:
        raise UserError("batch norm cannot be trained on single images: batch_size must be at least 2, and so the data")
    number = 0
    for epoch in range(training.epochs):
        order = train.order(seeded(seed, epoch))
        batches = [batch for batch in order.split(training.batch_size) if len(batch) >= needed]
        steps = [Step(number + place, epoch, batch) for place, batch in enumerate(batches)]
        number += len(steps)
        for group in optimiser.param_groups:
            group["lr"] = training.learning_rate(epoch)
        losses: list[Tensor] = []
        crops, mean, std = training.views(preprocessing.size), preprocessing.mean, preprocessing.std
        for batch in train.views(crops, steps, seed, count=1, device=device, mean=mean, std=std):
            if len(batch) < needed:
                continue
            assert batch.labels is not None
            images = batch.views[0].contiguous(memory_format=torch.channels_last)
            optimiser.zero_grad()
            for network, head in pairs:
                loss = cross_entropy(network, head, images, batch.labels.to(device, non_blocking=True))
                loss.backward()
                losses.append(loss.detach())
                if progress:
                    progress(len(batch))
            optimiser.step()
        # Only now, as a look at a loss waits for the device.
        seen = torch.stack(losses).tolist() if losses else []
        if bad := [loss for loss in seen if not math.isfinite(loss)]:
            raise UserError(f"the classifier's loss became {bad[0]} in epoch {epoch + 1}: lower `lr`")


def cross_entropy(network: nn.Module, head: nn.Linear, images: Tensor, labels: Tensor) -> Tensor:
    with nullcontext() if network.training else torch.no_grad():
        features = network(images)
    return F.cross_entropy(head(features), labels)


def make_optimiser(weights: list[nn.Parameter], training: Training) -> torch.optim.Optimizer:
    if training.optimiser == "sgd":
        return torch.optim.SGD(weights, lr=training.lr, momentum=0.9, weight_decay=training.weight_decay)
    lars = need("timm.optim", "LARS, which the paper's probe for ImageNet learns by,").Lars
    # Without weight decay timm's is plain SGD unless told to adapt, as apex's LARC always does.
    return lars(weights, lr=training.lr, momentum=0.9, weight_decay=training.weight_decay, always_adapt=True)
