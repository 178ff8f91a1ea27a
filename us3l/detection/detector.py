"""Faster and Mask R-CNN with a feature pyramid, on a plain backbone of any width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log2
from typing import Any

import torch
from torch import nn
from torchvision.models._utils import IntermediateLayerGetter
from torchvision.models.detection import FasterRCNN, MaskRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.ops import FrozenBatchNorm2d, MultiScaleRoIAlign
from torchvision.ops.poolers import initLevelMapper

from us3l.data.view_settings import MEAN, STD
from us3l.detection.schedule import SCHEDULES, DetectorTraining
from us3l.families.family import Family
from us3l.slimmable import Slimmable
from us3l.system.errors import UserError
from us3l.width import Width

POOLED, POOLED_FOR_MASKS = 7, 14  # sides of what the heads see of a region
LONGEST = 1333 / 800  # longer side of the images, at most, over the shorter one
SIZES = 6  # random sizes in training


def detector_of(
    net: Slimmable, width: Width, classes: int, masks: bool, training: DetectorTraining, layout: str
) -> FasterRCNN | MaskRCNN:
    """A detector on the carved network of that width, its heads at random weights by the seed."""
    if not net.calibrated(width):
        raise UserError(f"width {width:g} has no batch-norm statistics: us3l.calibrate(net, images) and save it first")
    preprocessing = net.metadata.get("preprocessing")
    return build_detector(net.family, net.carve(width), classes, masks, training, layout, preprocessing or {})


def build_detector(
    family: Family,
    network: nn.Module,
    classes: int,
    masks: bool,
    training: DetectorTraining,
    layout: str,
    preprocessing: Mapping[str, Any],
) -> FasterRCNN | MaskRCNN:
    """A detector that trains all of `network`. Labels are from 1 to `classes`; 0 is the background."""
    body, levels = pyramid_levels(family, network)
    if training.norms == "frozen":
        freeze_norms(body)
    strides, channels = level_shapes(body, levels)
    size = training.image_size or 200 * strides[0]
    smallest = SCHEDULES[layout].smallest
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(training.seed)
        parts: dict[str, Any] = {
            "backbone": BackboneWithFPN(body, levels, channels, training.channels),
            # The usual sizes, 32 to 512 at strides of 4 to 64, for other strides in proportion.
            "rpn_anchor_generator": AnchorGenerator(
                tuple((8 * stride,) for stride in (*strides, 2 * strides[-1])), ((0.5, 1.0, 2.0),) * (len(strides) + 1)
            ),
            "box_roi_pool": pooler(POOLED, strides),
            "box_head": TwoMLPHead(training.channels * POOLED**2, 4 * training.channels),
            "box_predictor": FastRCNNPredictor(4 * training.channels, classes + 1),
            "box_batch_size_per_image": training.regions,
            # The last one is for testing.
            "min_size": tuple(round(size * (smallest + (1 - smallest) * i / (SIZES - 1))) for i in range(SIZES)),
            "max_size": round(size * LONGEST),
            "size_divisible": strides[-1],
            "image_mean": list(preprocessing.get("mean", MEAN)),
            "image_std": list(preprocessing.get("std", STD)),
        }
        if not masks:
            return FasterRCNN(**parts)
        head = MaskRCNNHeads(training.channels, (training.channels,) * 4, dilation=1)
        predictor = MaskRCNNPredictor(training.channels, training.channels, classes + 1)
        pool = pooler(POOLED_FOR_MASKS, strides)
        return MaskRCNN(**parts, mask_roi_pool=pool, mask_head=head, mask_predictor=predictor)


def pooler(side: int, strides: Sequence[int]) -> MultiScaleRoIAlign:
    """Takes regions out of the levels.

    torchvision would guess the strides from the first images it sees, wrongly if these are small and padded, and keep
    its guess outside of the state that a resumed training starts from.
    """
    pool = MultiScaleRoIAlign([str(level) for level in range(len(strides))], side, sampling_ratio=2)
    pool.scales = [1 / stride for stride in strides]
    pool.map_levels = initLevelMapper(round(log2(strides[0])), round(log2(strides[-1])))
    return pool


def pyramid_levels(family: Family, network: nn.Module) -> tuple[nn.Module, dict[str, str]]:
    """The part of a network that makes maps, and the modules whose outputs are the pyramid's four levels."""
    maps = family.feature_maps(network)
    if maps is None:
        raise UserError(
            f"detection needs a backbone with maps of four sizes, a ResNet, a MobileNetV2, or a family of your own "
            f"with feature_maps; this is a {type(network).__name__}"
        )
    body, names = maps
    return body, {name: str(level) for level, name in enumerate(names)}


def freeze_norms(module: nn.Module) -> None:
    """Put torchvision's frozen batch norms, with the same weights and statistics, in the place of all."""
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm2d):
            frozen = FrozenBatchNorm2d(child.num_features, child.eps)
            frozen.load_state_dict(child.state_dict())
            setattr(module, name, frozen)
        else:
            freeze_norms(child)


@torch.no_grad()
def level_shapes(body: nn.Module, levels: dict[str, str]) -> tuple[list[int], list[int]]:
    """Stride and channels of each level."""
    side = 64
    maps = IntermediateLayerGetter(body, levels).eval()(torch.zeros(1, 3, side, side)).values()
    return [side // found.shape[-1] for found in maps], [found.shape[1] for found in maps]
