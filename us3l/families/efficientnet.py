"""EfficientNet-B0 as a function of a width, of timm's own blocks and with its names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from us3l.families.family import StagedBackbone, needs_timm
from us3l.families.mixed_precision import StridedDepthwise
from us3l.width import round_channels

# Kind of block, blocks, kernel, stride, expansion and channels at width 1, stage by stage.
STAGES = (
    ("ds", 1, 3, 1, 1, 16), ("ir", 2, 3, 2, 6, 24), ("ir", 2, 5, 2, 6, 40), ("ir", 3, 3, 2, 6, 80),
    ("ir", 3, 5, 1, 6, 112), ("ir", 4, 5, 2, 6, 192), ("ir", 1, 3, 1, 6, 320),
)  # fmt: skip
FIRST, LAST = 32, 1280


@dataclass(frozen=True)
class EfficientNetFamily(StagedBackbone):
    """`family(width)` builds the plain network of that width (a number, or one for each of the seven stages).

    The first convolution follows the first stage; the last one keeps its channels at every width. For CIFAR, the first
    convolution and the second stage have stride 1. Of each stage, all blocks but the first may be left out.
    """

    name: str = "efficientnet_b0"

    stages = len(STAGES)
    blocks = tuple(stage[1] for stage in STAGES)
    classifier = "classifier"

    def channel_counts(self, widths: tuple[float, ...]) -> tuple[int, ...]:
        scale = self.base / 64
        stages = (round_channels(w * scale * stage[-1]) for w, stage in zip(widths, STAGES, strict=True))
        return round_channels(widths[0] * scale * FIRST), *stages, round_channels(scale * LAST)

    def __call__(self, width: Any) -> nn.Module:
        with needs_timm(self.name):
            from timm.models._efficientnet_builder import decode_arch_def
            from timm.models.efficientnet import EfficientNet

        widths, blocks = self.stagewise(width)
        first, *stages, last = self.channel_counts(widths)
        design = [
            [f"{kind}_r{count}_k{kernel}_s{stride}_e{expansion}_c{channels}_se0.25"]
            for channels, count, (kind, _, kernel, stride, expansion, _) in zip(stages, blocks, STAGES, strict=True)
        ]
        sizes: dict[str, Any] = {"num_features": last, "stem_size": first, "round_chs_fn": lambda channels: channels}
        network: Any = EfficientNet(decode_arch_def(design), self.num_classes, act_layer=nn.SiLU, **sizes)
        for stage in network.blocks:
            for number, block in enumerate(stage):
                # By the place in the network: timm would add shortcuts where channel counts happen to agree.
                block.has_skip = number > 0
                if block.conv_dw.stride == (2, 2):
                    block.conv_dw = StridedDepthwise.like(block.conv_dw)
        if self.stem == "cifar":
            network.conv_stem.stride = network.blocks[1][0].conv_dw.stride = (1, 1)
        return network

    @classmethod
    def recognise(cls, shapes: Mapping[str, Sequence[int]]) -> dict[str, Any] | None:
        found = {tuple(name.split(".")[1:3]) for name in shapes if name.startswith("blocks.") and ".se." in name}
        ours = {(str(stage), str(block)) for stage, count in enumerate(cls.blocks) for block in range(count)}
        if found != ours or "conv_stem.weight" not in shapes or "conv_head.weight" not in shapes:
            return None
        return {"backbone": "efficientnet_b0", "base": 2 * shapes["conv_stem.weight"][0]}

    def channels(self, name: str) -> tuple[str | None, ...]:
        """Return a stream for each stage, the channels inside of each block, and those that make its gate."""
        part, *inner, _ = name.split(".")
        if part != "blocks":
            return {"conv_stem": ("stem",), "bn1": ("stem",), "conv_head": (None, "stage6")}.get(part, ())
        stage, block, layer, *rest = inner
        outside = f"stage{stage}"
        inside = outside if int(block) else f"stage{int(stage) - 1}" if int(stage) else "stem"
        hidden, gate = f"block{stage}.{block}", f"gate{stage}.{block}"
        if stage == "0":  # whose one block does not widen
            hidden, ends = inside, ("conv_pw", "bn2")
        else:
            ends = ("conv_pwl", "bn3")
        if layer == "se":
            return (gate, hidden) if rest == ["conv_reduce"] else (hidden, gate)
        if layer in ends:
            return outside, hidden
        return (hidden, inside) if layer == "conv_pw" else (hidden,)

    def chain(self, network: Any) -> list[nn.Module]:
        blocks = [block for stage in network.blocks for block in stage]
        return [network.conv_stem, network.bn1, *blocks, network.conv_head, network.bn2]
