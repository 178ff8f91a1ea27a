"""MobileNetV2 as a function of a width, of torchvision's own blocks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torchvision.models.mobilenetv2 import InvertedResidual
from torchvision.ops import Conv2dNormActivation

from us3l.families.family import StagedBackbone
from us3l.families.mixed_precision import StridedDepthwise
from us3l.width import round_channels

# Expansion, channels, blocks, stride at width 1, stage by stage.
STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
FIRST, LAST = 32, 1280
STREAMS = ("stem", *(f"stage{i}" for i, stage in enumerate(STAGES) for _ in range(stage[2])), None)
"""Which channels each module of the features gives; the last ones are the same at every width."""
LEVELS = ("3", "6", "13", "18")  # where the resolution is about to halve, and the end


TIMM_FIRST = {"conv_dw": "0.0", "bn1": "0.1", "conv_pw": "1", "bn2": "2"}
TIMM_OTHERS = {"conv_pw": "0.0", "bn1": "0.1", "conv_dw": "1.0", "bn2": "1.1", "conv_pwl": "2", "bn3": "3"}
TIMM_ENDS = {"conv_stem": "0.0", "bn1": "0.1", "conv_head": "18.0", "bn2": "18.1"}
"""What timm calls the layers of the first block, of the other blocks, and before and after them."""


@dataclass(frozen=True)
class MobileNetFamily(StagedBackbone):
    """`family(width)` builds the plain network of that width (a number, or one for each of the seven stages).

    The first convolution follows the first stage; the last one keeps its channels at every width. For CIFAR, the first
    convolution and the second stage have stride 1. Of each stage, all blocks but the first may be left out.
    """

    name: str = "mobilenet_v2"

    stages = len(STAGES)
    blocks = tuple(count for _, _, count, _ in STAGES)
    classifier = "classifier"

    def channel_counts(self, widths: tuple[float, ...]) -> tuple[int, ...]:
        """Return channels of the first convolution, of each stage and of the last convolution."""
        scale = self.base / 64
        stages = (round_channels(w * scale * channels) for w, (_, channels, _, _) in zip(widths, STAGES, strict=True))
        return round_channels(widths[0] * scale * FIRST), *stages, round_channels(scale * LAST)

    def __call__(self, width: Any) -> MobileNet:
        widths, blocks = self.stagewise(width)
        return MobileNet(self.channel_counts(widths), blocks, self.stem == "cifar", self.num_classes)

    @classmethod
    def recognise(cls, shapes: Mapping[str, Sequence[int]]) -> dict[str, Any] | None:
        stem = next((shapes[name] for name in ("features.0.0.weight", "conv_stem.weight") if name in shapes), None)
        if stem is None or shapes.keys().isdisjoint(("features.18.0.weight", "conv_head.weight")):
            return None
        if any(".se." in name for name in shapes):  # timm's EfficientNets begin and end with the same names
            return None
        return {"backbone": "mobilenet_v2", "base": 2 * stem[0]}

    def translate(self, name: str) -> str:
        """timm uses other names for the same network than torchvision."""
        head, *inner, leaf = name.split(".")
        if head in TIMM_ENDS and not inner:
            return f"features.{TIMM_ENDS[head]}.{leaf}"
        if head != "blocks":
            return name
        stage, block, layer = inner
        place = 1 + sum(count for _, _, count, _ in STAGES[: int(stage)]) + int(block)
        layers = TIMM_OTHERS if int(stage) else TIMM_FIRST
        return f"features.{place}.conv.{layers[layer]}.{leaf}" if layer in layers else name

    def channels(self, name: str) -> tuple[str | None, ...]:
        """Return a stream for each stage, and the channels inside of each block."""
        part, *inner = name.split(".")[:-1]
        if part != "features":
            return ()
        place = int(inner[0])
        outside = STREAMS[place]
        if place == 0:
            return outside, None
        inside = STREAMS[place - 1]
        if place == len(STREAMS) - 1:
            return outside, inside
        expanded = place > 1  # the first block has no layer that widens
        hidden, layer = f"block{place}" if expanded else inside, int(inner[2])
        if layer > expanded:
            return outside, hidden
        return hidden, inside if expanded and layer == 0 else None

    def chain(self, network: MobileNet) -> list[nn.Module]:
        return [*network.features]

    def feature_maps(self, network: MobileNet) -> tuple[nn.Module, list[str]]:
        names = [name for name, _ in network.features.named_children()]
        return network.features, [max((n for n in names if int(n) <= int(level)), key=int) for level in LEVELS]


class MobileNet(nn.Module):
    """Features (N x C) of images (N x 3 x H x W); logits when there are classes."""

    def __init__(self, channels: tuple[int, ...], blocks: tuple[int, ...], small: bool, num_classes: int) -> None:
        super().__init__()
        inside, *stages, last = channels
        stem = Conv2dNormActivation(3, inside, stride=1 if small else 2, activation_layer=nn.ReLU6)
        layers: dict[int, nn.Module] = {0: stem}  # by their places when no block is left out
        place = 1
        for stage, (outside, (expansion, _, count, stride)) in enumerate(zip(stages, STAGES, strict=True)):
            for i in range(blocks[stage]):
                block = InvertedResidual(inside, outside, 1 if i or (small and stage == 1) else stride, expansion)
                # By the place in the network: torchvision would add shortcuts where channel counts happen to agree.
                block.use_res_connect = i > 0
                if block.stride == 2:
                    depthwise = block.conv[-3]
                    depthwise[0] = StridedDepthwise.like(depthwise[0])
                layers[place + i] = block
                inside = outside
            place += count
        layers[place] = Conv2dNormActivation(inside, last, kernel_size=1, activation_layer=nn.ReLU6)
        self.features = nn.Sequential(OrderedDict((str(place), layer) for place, layer in layers.items()))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(last, num_classes)) if num_classes else nn.Identity()
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.01)
                nn.init.zeros_(module.bias)

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.avgpool(self.features(images)).flatten(1))
