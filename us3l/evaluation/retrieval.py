"""Retrieval across widths: queries of one width in a gallery of another, in the space that all widths share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from us3l.data.images import Images
from us3l.evaluation.features import embed_all
from us3l.evaluation.knn import knn
from us3l.evaluation.prepare import prepare
from us3l.evaluation.scoring import percent_correct
from us3l.run.retrievals import Retrieval
from us3l.slimmable import Slimmable
from us3l.system.progress import Advance
from us3l.width import Width

CHUNK = 1024


def retrieval_matrix(
    net: Slimmable,
    gallery: Images,
    queries: Images,
    widths: Sequence[Width],
    network_of: Callable[[Width], nn.Module],
    progress: Advance | None = None,
) -> list[Retrieval]:
    """Every width against every width.

    Args:
        net: The network.
        gallery: Labelled images to search.
        queries: Labelled images to search with.
        widths: Those to compare.
        network_of: Gives the network of a width, from images into the shared space.
        progress: Called with each number of images embedded, of `images_to_search(...)` in all.
    """
    task = prepare(net, gallery, queries, widths)
    networks = [network_of(width) for width in widths]
    known, asked = (
        embed_all(networks, images, task.preprocessing, progress=progress) for images in (task.train, task.test)
    )
    spaced = [
        tuple(F.normalize(values.float(), dim=1) for values in both)
        for both in zip(known.values, asked.values, strict=True)
    ]
    return [
        Retrieval(
            query,
            place,
            recall_at_1(asked_values, known_values, asked.labels, known.labels),
            percent_correct(knn(known_values, known.labels, asked_values, num_classes=task.classes), asked.labels),
        )
        for query, (_, asked_values) in zip(widths, spaced, strict=True)
        for place, (known_values, _) in zip(widths, spaced, strict=True)
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
