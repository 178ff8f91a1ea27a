"""Retrieval across widths: queries of one width in a gallery of another, in the space that all widths share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from us3l.data.images import Images
from us3l.evaluation.features import embed_all
from us3l.evaluation.linear import Probe
from us3l.evaluation.neighbours import knn
from us3l.evaluation.results import percent_correct
from us3l.evaluation.tasks import prepare
from us3l.progress import Advance
from us3l.slimmable import Slimmable
from us3l.width import Width, as_plain

CHUNK = 1024


@dataclass(frozen=True)
class Retrieved:
    """How well queries of one width find images of their class in a gallery of another, in percent."""

    query: Width
    gallery: Width
    recall: float
    """Recall@1: the nearest image of the gallery is of the query's class."""
    knn: float
    """kNN accuracy, as `us3l evaluate` measures it."""

    def to_plain(self) -> dict[str, Any]:
        """As files hold it."""
        return vars(self) | {"query": as_plain(self.query), "gallery": as_plain(self.gallery)}


def retrieval_matrix(
    net: Slimmable,
    gallery: Images,
    queries: Images,
    maps: Mapping[Width, Probe],
    progress: Advance | None = None,
) -> list[Retrieved]:
    """Every width against every width.

    Args:
        net: The network.
        gallery: Labelled images to search.
        queries: Labelled images to search with.
        maps: Of the widths to compare, into the shared space.
        progress: Called with each number of images embedded, of `images_to_search(...)` in all.
    """
    task = prepare(net, gallery, queries, list(maps))
    networks = [net.at(width) for width in maps]
    known = embed_all(networks, task.train, task.preprocessing, progress=progress)
    asked = embed_all(networks, task.test, task.preprocessing, progress=progress)
    pairs = zip(maps.values(), known.values, asked.values, strict=True)
    spaced = [tuple(F.normalize(probe.scores(values), dim=1) for values in both) for probe, *both in pairs]
    return [
        Retrieved(
            query,
            place,
            recall_at_1(asked_values, known_values, asked.labels, known.labels),
            percent_correct(knn(known_values, known.labels, asked_values, num_classes=task.classes), asked.labels),
        )
        for query, (_, asked_values) in zip(maps, spaced, strict=True)
        for place, (known_values, _) in zip(maps, spaced, strict=True)
    ]


def images_to_search(gallery: Images, queries: Images, widths: Sequence[Width]) -> int:
    """What `retrieval_matrix` reports as progress in all."""
    return (len(gallery) + len(queries)) * len(widths)


def recall_at_1(queries: Tensor, gallery: Tensor, query_labels: Tensor, gallery_labels: Tensor) -> float:
    """In how many percent of the queries the nearest image of the gallery is of the same class; all are unit vectors.

    >>> recall_at_1(torch.eye(2), torch.eye(2), torch.tensor([0, 1]), torch.tensor([0, 2]))
    50.0
    """
    nearest = torch.cat([(part @ gallery.T).argmax(1) for part in queries.split(CHUNK)])
    return 100 * (gallery_labels[nearest] == query_labels).double().mean().item()
