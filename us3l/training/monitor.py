"""Gauges of a run in progress, for each monitored width: kNN accuracy and collapse."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from us3l.data.views import evaluation_view
from us3l.evaluation.knn import knn_accuracy
from us3l.objective.learner import Learner

WIDTHS = (1.0, 0.75, 0.5, 0.25)
BANK, QUERIES, BATCH = 2000, 500, 250
COLLAPSED = 0.1
Gauges = dict[float, dict[str, float]]


class Monitor:
    """Looks at fixed, plain training images. Labels, where there are any, serve only to be shown to people."""

    def __init__(self, images: Tensor, labels: Tensor | None, size: int, widths: Sequence[float] = WIDTHS) -> None:
        chosen = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[: BANK + QUERIES]
        self.images = evaluation_view(images[chosen], size)
        self.labels = None if labels is None else labels[chosen].to(images.device)
        self.queries = min(QUERIES, len(chosen) // 5)
        self.widths = widths

    @torch.no_grad()
    def measure(self, learner: Learner) -> Gauges:
        """For each width `spread`, and `knn` when there are labels. Batch norm uses the statistics of each batch."""
        gauges: Gauges = {}
        for width in self.widths:
            network = learner.net.bind(width)
            features = [network(batch) for batch in self.images.tensor_split(max(1, len(self.images) // BATCH))]
            gauges[width] = {"spread": spread(torch.cat([learner.projector(batch) for batch in features]))}
            if self.labels is not None and self.queries:
                found = torch.cat(features)
                q = self.queries
                gauges[width]["knn"] = knn_accuracy(found[q:], self.labels[q:], found[:q], self.labels[:q])
        return gauges


def spread(embeddings: Tensor) -> float:
    """The collapse gauge: mean channel deviation of the normalised embeddings, times the root of their dimension.

    About 1 when directions are spread evenly, 0 when all embeddings are the same.
    """
    directions = torch.nn.functional.normalize(embeddings.float(), dim=1)
    return directions.std(dim=0).mean().item() * embeddings.shape[1] ** 0.5
