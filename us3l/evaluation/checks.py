"""Checks of features and labels before any work."""

import torch
from torch import Tensor

from us3l.system.errors import UserError


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
