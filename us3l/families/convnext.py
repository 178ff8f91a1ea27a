"""ConvNeXts as functions of a width, of timm's own blocks and with its names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import nn

from us3l.families.family import StagedBackbone, needs_timm
from us3l.system.errors import UserError
from us3l.width import round_channels


class ConvNeXtPlan(NamedTuple):
    blocks: tuple[int, ...]
    channels: int
    """Of the first stage; each later one has twice as many."""
    convolutions: bool
    """Whether the layers of its MLPs are convolutions of one pixel; else they are linear."""


KINDS = {
    "convnext_atto": ConvNeXtPlan((2, 2, 6, 2), 40, True),
    "convnext_tiny": ConvNeXtPlan((3, 3, 9, 3), 96, False),
}


PATCHES = {"imagenet": 4, "cifar": 1}
"""Sides in pixels; three later stages halve the maps."""


@dataclass(frozen=True)
class ConvNeXtFamily(StagedBackbone):
    """`family(width)` builds the plain network of that width (a number, or one for each of the four stages).

    The stem follows the first stage. For CIFAR its patches are single pixels instead of 4 x 4. Of each stage, all
    blocks but the first may be left out.
    """

    name: str = "convnext_atto"

    stages = 4
    classifier = "head.fc"

    @classmethod
    def fit(cls, stem: str, size: int, frozen_patches: bool) -> dict[str, Any]:
        if size < (smallest := 8 * PATCHES[stem]):
            raise UserError(f"a ConvNeXt with the stem {stem!r} takes images of at least {smallest} pixels, not {size}")
        return super().fit(stem, size, frozen_patches)

    @property
    def blocks(self) -> tuple[int, ...]:  # type: ignore[override]
        return KINDS[self.name].blocks

    def channel_counts(self, widths: tuple[float, ...]) -> tuple[int, ...]:
        first = KINDS[self.name].channels * self.base / 64
        return tuple(round_channels(w * first * 2**stage) for stage, w in enumerate(widths))

    def __call__(self, width: Any) -> nn.Module:
        with needs_timm(self.name):
            from timm.models.convnext import ConvNeXt

        widths, blocks = self.stagewise(width)
        sizes: dict[str, Any] = {"depths": blocks, "dims": self.channel_counts(widths)}
        sizes["patch_size"] = PATCHES[self.stem]
        return ConvNeXt(num_classes=self.num_classes, conv_mlp=KINDS[self.name].convolutions, **sizes)

    def chain(self, network: Any) -> list[nn.Module]:
        stages = ([stage.downsample, *stage.blocks] for stage in network.stages)
        return [network.stem, *(part for stage in stages for part in stage)]

    @classmethod
    def recognise(cls, shapes: Mapping[str, Sequence[int]]) -> dict[str, Any] | None:
        if "stem.0.weight" not in shapes or "stages.0.blocks.0.gamma" not in shapes:
            return None
        channels, _, patch, _ = shapes["stem.0.weight"]
        for name, kind in KINDS.items():
            last = [f"stages.{stage}.blocks.{count - 1}.gamma" for stage, count in enumerate(kind.blocks)]
            more = [f"stages.{stage}.blocks.{count}.gamma" for stage, count in enumerate(kind.blocks)]
            if all(each in shapes for each in last) and not any(each in shapes for each in more):
                return {
                    "backbone": name,
                    "stem": "cifar" if patch == 1 else "imagenet",
                    "base": round(64 * channels / kind.channels),
                }
        return None

    def channels(self, name: str) -> tuple[str | None, ...]:
        """Return a stream for each stage, and the hidden channels of each block."""
        part, *inner = name.split(".")
        if part == "stem":
            return ("stage0",)  # of the image's channels none are sorted
        if part == "head":
            return (None, "stage3") if inner[0] == "fc" else ("stage3",)
        stage, kind, *rest = inner
        stream = f"stage{stage}"
        if kind == "downsample":
            before = f"stage{int(stage) - 1}"
            return (before,) if rest[0] == "0" else (stream, before)
        if rest[1] != "mlp":
            return (stream,)
        hidden = f"{stream}.{rest[0]}"
        return (hidden, stream) if rest[2] == "fc1" else (stream, hidden)
