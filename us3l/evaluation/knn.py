"""The weighted k-nearest-neighbour classifier of Wu et al. (2018): no training, so the fastest look at features."""

import torch
from torch import Tensor
from torch.nn import functional as F

from us3l.evaluation.features import check_features, check_labelled
from us3l.evaluation.scoring import percent_correct
from us3l.system.errors import UserError


def knn(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    k: int = 20,
    temperature: float = 0.07,
    num_classes: int | None = None,
    chunk: int = 256,
) -> Tensor:
    """Class scores (N_test x C, rows sum to 1): the k most similar training images vote with exp(cosine / temperature).

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
