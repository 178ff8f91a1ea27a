"""ResNets as functions of a width; modules and parameters are named as in torchvision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from us3l.families.family import StagedBackbone, Stem
from us3l.width import round_channels

BLOCKS = {"resnet18": (2, 2, 2, 2), "resnet50": (3, 4, 6, 3)}


@dataclass(frozen=True)
class ResNetFamily(StagedBackbone):
    """`family(width)` builds the plain network of that width (a number, or one for each of the four stages).

    The stem slims its output only and the classifier its input only; all else, residual stream included, slims on
    both sides. The CIFAR stem is a 3x3 convolution of stride 1 without max-pooling. Of each stage, all
    blocks but the first may be left out.
    """

    name: str = "resnet18"

    stages = 4
    classifier = "fc"

    @property
    def bottleneck(self) -> bool:
        return self.name == "resnet50"

    @property
    def blocks(self) -> tuple[int, ...]:  # type: ignore[override]
        return BLOCKS[self.name]

    def channel_counts(self, widths: tuple[float, ...]) -> tuple[int, ...]:
        """Return stem channels, then the inner and outer channels of each stage."""
        inner = [round_channels(w * self.base * 2**i) for i, w in enumerate(widths)]
        outer = [round_channels(w * self.base * 2 ** (i + 2)) for i, w in enumerate(widths)]
        return inner[0], *(c for pair in zip(inner, outer if self.bottleneck else inner, strict=True) for c in pair)

    def __call__(self, width: Any) -> ResNet:
        widths, blocks = self.stagewise(width)
        return ResNet(self.channel_counts(widths), blocks, self.bottleneck, self.stem, self.num_classes)

    @classmethod
    def recognise(cls, shapes: Mapping[str, Sequence[int]]) -> dict[str, Any] | None:
        if "conv1.weight" not in shapes or "layer4.1.conv2.weight" not in shapes:
            return None
        base, _, kernel, _ = shapes["conv1.weight"]
        name = "resnet50" if "layer1.0.conv3.weight" in shapes else "resnet18"
        return {"backbone": name, "stem": "cifar" if kernel == 3 else "imagenet", "base": base}

    def channels(self, name: str) -> tuple[str | None, ...]:
        """Return a stream per stage, one between stem and first stage if a shortcut parts them, and those in blocks."""
        stem, last = ("stem", 3) if self.bottleneck else ("layer1", 2)
        stage, *inner = name.split(".")[:-1]
        if stage == "fc":
            return None, "layer4"
        if not inner:
            return stem, None
        before = stem if stage == "layer1" else f"layer{int(stage[-1]) - 1}"
        block, layer, *_ = inner
        source = before if block == "0" else stage
        if layer == "downsample":
            return stage, source
        number, place = int(layer[-1]), f"{stage}.{block}."  # of conv1 and bn1, and so on
        return stage if number == last else f"{place}{number}", source if number == 1 else f"{place}{number - 1}"

    def chain(self, network: ResNet) -> list[nn.Module]:
        layers = network.layer1, network.layer2, network.layer3, network.layer4
        stem = network.conv1, network.bn1, network.relu, network.maxpool
        return [*stem, *(block for layer in layers for block in layer)]

    def feature_maps(self, network: ResNet) -> tuple[nn.Module, list[str]]:
        return network, ["layer1", "layer2", "layer3", "layer4"]


class ResNet(nn.Module):
    """Features (N x C) of images (N x 3 x H x W); logits when there are classes."""

    def __init__(
        self, channels: tuple[int, ...], blocks: tuple[int, ...], bottleneck: bool, stem: Stem, num_classes: int
    ) -> None:
        super().__init__()
        small = stem == "cifar"
        self.conv1 = nn.Conv2d(3, channels[0], 3 if small else 7, 1 if small else 2, 1 if small else 3, bias=False)
        self.bn1 = nn.BatchNorm2d(channels[0])
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.Identity() if small else nn.MaxPool2d(3, 2, 1)
        layers, inside = [], channels[0]
        for stage, count in enumerate(blocks):
            inner, outer = channels[1 + 2 * stage : 3 + 2 * stage]
            layer = []
            for i in range(count):
                stride = 2 if stage > 0 and i == 0 else 1
                # Decided by the place in the network, not by channel counts, so that every width has the same layers.
                downsample = i == 0 and (stage > 0 or bottleneck)
                block = Bottleneck if bottleneck else BasicBlock
                layer.append(block(inside, inner, outer, stride, downsample))
                inside = outer
            layers.append(nn.Sequential(*layer))
        self.layer1, self.layer2, self.layer3, self.layer4 = layers
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inside, num_classes) if num_classes else nn.Identity()
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(1))


def convolution(inside: int, outside: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inside, outside, kernel, stride, kernel // 2, bias=False)


class Pointwise(nn.Conv2d):
    """A strided 1x1 convolution that trains on 8 channels too, computed on the pixels that it looks at.

    The usual backward pass crashes in oneDNN (torch 2.14, AVX-512) for 8 channels, channels last, seen from 48 pixels
    on: the first stage of a network of `base=16` at half width.
    """

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.in_channels > 8 or x.shape[-1] <= 32:
            return super().forward(x)
        down, across = self.stride
        return F.conv2d(x[..., ::down, ::across], self.weight)


def shortcut(inside: int, outside: int, stride: int) -> nn.Sequential:
    return nn.Sequential(Pointwise(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))


class BasicBlock(nn.Module):
    def __init__(self, inside: int, inner: int, outer: int, stride: int, downsample: bool) -> None:
        super().__init__()
        self.conv1 = convolution(inside, inner, 3, stride)
        self.bn1 = nn.BatchNorm2d(inner)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = convolution(inner, outer, 3)
        self.bn2 = nn.BatchNorm2d(outer)
        self.downsample = shortcut(inside, outer, stride) if downsample else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nn.Module):
    def __init__(self, inside: int, inner: int, outer: int, stride: int, downsample: bool) -> None:
        super().__init__()
        self.conv1 = convolution(inside, inner, 1)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = convolution(inner, inner, 3, stride)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3 = convolution(inner, outer, 1)
        self.bn3 = nn.BatchNorm2d(outer)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = shortcut(inside, outer, stride) if downsample else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))
