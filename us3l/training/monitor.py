"""Gauges of a run in progress, for each monitored width: collapse, quality without labels, kNN, consistency."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from us3l.evaluation.knn import knn_accuracy
from us3l.evaluation.unlabelled import embed_views, quality
from us3l.system.seeds import seeded
from us3l.training.trainer import Trainer
from us3l.width import Width

WIDTHS = (1.0, 0.75, 0.5, 0.25)
BANK, QUERIES, BATCH = 2000, 500, 250
PROBED = 128  # images on which the guidance is measured
COLLAPSED = 0.1
WidthGauges = dict[Width, dict[str, float]]


class Monitor:
    """Looks at fixed training images. Labels, where there are any, serve only to be shown to people.

    Its state is the guidance last measured, which belongs into a run's checkpoint.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.widths = trainer.learner.net.among(WIDTHS)
        sample = trainer.sample(BANK + QUERIES, torch.Generator().manual_seed(0))
        self.raw = sample.images
        self.images = trainer.preprocessing.apply(self.raw)
        self.labels = None if sample.labels is None else sample.labels.to(self.raw.device)
        self.queries = min(QUERIES, len(self.raw) // 5)
        self.guidance: dict[Width, Tensor] = {}

    def measure(self) -> WidthGauges:
        """For each width `spread`, `rankme` and `lidar`, and `knn` when there are labels; for sub-networks `agreement`,
        and `turn` and `change` from the second measurement on."""
        gauges = self.look()
        if len(self.trainer.widths(self.trainer.steps - 1)) > 1:  # else there are no sub-networks to guide
            for width in self.widths:
                if width < 1:
                    gauges[width] |= self.consistency(width)
        return gauges

    @torch.no_grad()
    def look(self) -> WidthGauges:
        """Return what the features of each width are like. Batch norm uses the statistics of each batch."""
        networks = [self.trainer.learner.net.bind(width) for width in self.widths]
        few = self.raw[: max(2, self.queries)]
        viewed = embed_views(networks, few, self.trainer.recipe.views, self.trainer.preprocessing)
        gauges: WidthGauges = {}
        full = None
        for width, network, of_views in zip(self.widths, networks, viewed, strict=True):
            batches = [network(batch) for batch in self.images.tensor_split(max(1, len(self.images) // BATCH))]
            features, q = torch.cat(batches), self.queries
            gauges[width] = {"spread": spread(torch.cat([self.trainer.learner.projector(batch) for batch in batches]))}
            gauges[width] |= quality(features, of_views, full)
            if self.labels is not None and q and features.isfinite().all():
                gauges[width]["knn"] = knn_accuracy(features[q:], self.labels[q:], features[:q], self.labels[:q])
            full = features if full is None else full
        return gauges

    def consistency(self, width: Width) -> dict[str, float]:
        """Measure how the guidance of a sub-network has changed since the last measurement, on fresh views."""
        recipe = self.trainer.recipe
        views = self.trainer.random_views(self.raw[:PROBED], seeded(recipe.seed, self.trainer.step, 0))
        labels = self.labels[:PROBED] if recipe.objective.supervised and self.labels is not None else None
        base, seen = self.trainer.base_views(views), self.trainer.sub_views(views)
        now = self.trainer.learner.guidance(base, width, labels, seen)
        before, self.guidance[width] = self.guidance.get(width), now
        if before is None:
            return {}
        gauges = {"turn": turn(before.to(now), now), "change": change(before.to(now), now)}
        return {name: value for name, value in gauges.items() if math.isfinite(value)}

    def state(self) -> dict[float, Tensor]:
        return {float(width): guidance for width, guidance in self.guidance.items()}

    def load_state(self, state: dict[float, Tensor]) -> None:
        self.guidance = {Width(width): guidance for width, guidance in state.items()}


def spread(embeddings: Tensor) -> float:
    """Return the collapse gauge: mean channel deviation of normalised embeddings, times the root of their dimension.

    About 1 when directions are spread evenly, 0 when all embeddings are the same, or are not finite.
    """
    directions = torch.nn.functional.normalize(embeddings.float(), dim=1)
    deviation = directions.std(dim=0).mean().item() * embeddings.shape[1] ** 0.5
    return deviation if math.isfinite(deviation) else 0.0


def change(before: Tensor, now: Tensor) -> float:
    """Return the mean length of the difference of gradients (V x N x D) between two iterations (equations 9 and 10)."""
    return (now - before).norm(dim=-1).mean().item()


def turn(before: Tensor, now: Tensor) -> float:
    """Return the same, relative to how much the gradients of different images differ: mean squares of both.

    0: every image is guided as before. 1: as if the images had been exchanged, so a collapsed network has it too.
    """
    same = (now - before).square().sum(dim=-1).mean()
    count = now.shape[1]
    # Over all pairs |a - b|^2 is |a|^2 + |b|^2 - 2ab, from which the pairs of one image are taken away.
    lengths = before.square().sum(dim=-1).mean() + now.square().sum(dim=-1).mean()
    everything = lengths - 2 * (before.mean(dim=1) * now.mean(dim=1)).sum(dim=-1).mean()
    others = (everything * count - same) / (count - 1)
    return (same / others).item()
