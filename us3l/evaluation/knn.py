"""What the nearest images say: the kNN classifier, and how well queries of one width search a gallery of another."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from us3l.data.images import Images
from us3l.evaluation.features import check_features, check_labelled, embed_all
from us3l.evaluation.prepare import prepare
from us3l.evaluation.scoring import percent_correct
from us3l.run.evaluations import Retrieval
from us3l.slimmable import Slimmable
from us3l.system.errors import UserError
from us3l.system.progress import Advance
from us3l.width import Width

CHUNK = 1024


def knn(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    k: int = 20,
    temperature: float = 0.07,
    num_classes: int | None = None,
    chunk: int = 256,
) -> Tensor:
    """Return class scores (N_test x C, rows sum to 1) by the weighted kNN classifier of Wu et al. (2018).

    Nothing is trained: the k most similar training images vote with exp(cosine / temperature).

    Args:
        train_features: N_train x D.
        train_labels: Class indices, N_train.
        test_features: N_test x D.
        k: Neighbours that vote; cut to the number of training images.
        temperature: Divides the cosines: the lower, the more the nearest ones count.
        num_classes: C (default: one more than the largest label).
        chunk: Test images to compare at a time, which bounds the memory.

    Returns:
        A score per test image and class.

    >>> train, labels = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1])
    >>> knn(train, labels, torch.tensor([[0.9, 0.1]])).argmax(1)
    tensor([0])
    """
    num_classes = check_labelled(train_features, train_labels, num_classes)
    check_features(test_features, like=train_features)
    if k < 1 or temperature <= 0 or chunk < 1:
        raise UserError(f"kNN needs k >= 1, temperature > 0, chunk >= 1; got k={k}, {temperature=}, {chunk=}")
    # Half precision cannot tell near neighbours apart.
    dtype = torch.promote_types(train_features.dtype, torch.float32)
    train = F.normalize(train_features.to(dtype), dim=1)
    scores = train.new_zeros(len(test_features), num_classes)
    for rows, out in zip(test_features.split(chunk), scores.split(chunk), strict=True):
        similarity, neighbours = (F.normalize(rows.to(dtype), dim=1) @ train.T).topk(min(k, len(train)))
        # softmax is exp(similarity / T), scaled for each image: the same order of classes, and it cannot overflow.
        out.scatter_add_(1, train_labels[neighbours], (similarity / temperature).softmax(1))
    return scores


def knn_accuracy(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    test_labels: Tensor,
    k: int = 20,
    temperature: float = 0.07,
) -> float:
    """Top-1 accuracy of `knn` in percent."""
    return percent_correct(knn(train_features, train_labels, test_features, k, temperature), test_labels)


# Retrieval across widths, in the space that they share


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
