"""The weighted k-nearest-neighbour classifier of Wu et al. (2018): no training, so the fastest look at features."""

import torch
from torch import Tensor
from torch.nn import functional as F

from us3l.errors import UserError
from us3l.evaluation.results import percent_correct


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

    `k` is cut to the number of training images; at most `chunk` x N_train similarities are held at a time.

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


def check_features(features: Tensor, like: Tensor | None = None) -> None:
    """Features are finite floats, images x dimensions, as many dimensions as `like`."""
    if (
        features.ndim != 2
        or not features.is_floating_point()
        or (like is not None and features.shape[1] != like.shape[1])
    ):
        wanted = "images x dimensions" if like is None else f"images x {like.shape[1]}"
        raise UserError(f"features must be floats, {wanted}; got {features.dtype}, {tuple(features.shape)}")
    if bad := int((~features.isfinite()).any(1).sum()):
        raise UserError(f"{bad} of {len(features)} images have NaN or infinite features: did training diverge?")


def check_labelled(features: Tensor, labels: Tensor, num_classes: int | None = None) -> int:
    """Features with one class index an image; returns the number of classes (by default the largest index + 1)."""
    check_features(features)
    if len(features) == 0 or labels.shape != features.shape[:1]:
        raise UserError(f"each training image needs a label; got {len(features)} images, labels {tuple(labels.shape)}")
    if labels.dtype != torch.int64 or labels.min() < 0:
        raise UserError("labels must be class indices 0, 1, 2, ... (int64): is the data labelled?")
    largest = int(labels.max())
    if num_classes is None:
        return largest + 1
    if largest >= num_classes:
        raise UserError(f"label {largest} is outside the {num_classes} classes 0..{num_classes - 1}")
    return num_classes
