"""Vision transformers as functions of a width; modules and parameters are named as in timm."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from us3l.families.family import Backbone
from us3l.families.mixed_precision import learned_in_32_bits
from us3l.system.errors import UserError
from us3l.width import round_channels

HEADS = {"vit_tiny": 3, "vit_small": 6}  # in timm, of 64 channels each
TORCHVISION = {
    "class_token": "cls_token",
    "conv_proj.": "patch_embed.proj.",
    "encoder.pos_embedding": "pos_embed",
    "encoder.ln.": "norm.",
    "encoder.layers.encoder_layer_": "blocks.",
    ".ln_": ".norm",
    ".self_attention.in_proj_": ".attn.qkv.",
    ".self_attention.out_proj.": ".attn.proj.",
    ".mlp.0.": ".mlp.fc1.",
    ".mlp.3.": ".mlp.fc2.",
    "heads.head.": "head.",
}
"""Parts of torchvision's names, and what timm and we call them."""
TEMPERATURE = 10_000.0  # of the sin-cos positions, as in MoCo v3


@dataclass(frozen=True)
class ViTFamily(Backbone):
    """`family(width)` builds the plain network of that width: the embedding dimension shrinks in all layers.

    The number of heads stays and each head narrows. Dimensions are multiples of the number of heads and of 4, because
    sin-cos positions come in fours. The blocks are one stage, whose last ones may be left out.
    """

    transformer = True
    classifier = "head"

    name: str = "vit_tiny"
    image_size: int = 224
    patch: int = 16
    base: int = 64
    """The embedding dimension at width 1 is three (Tiny) or six (Small) times this."""
    heads: int | None = None
    """Attention heads (default: timm's 3 or 6; the paper has 6 or 12)."""
    depth: int = 12
    pool: Literal["cls", "mean"] = "cls"
    positions: Literal["sincos", "learned"] = "sincos"
    frozen_patches: bool = False
    """Leave the patch embedding as it was drawn, as MoCo v3 does for stability."""
    num_classes: int = 0

    def __post_init__(self) -> None:
        dim, heads = self.sizes
        if self.pool not in ("cls", "mean"):
            raise UserError(f"unknown pool {self.pool!r}: choose 'cls' or 'mean'")
        if self.positions not in ("sincos", "learned"):
            raise UserError(f"unknown positions {self.positions!r}: choose 'sincos' or 'learned'")
        if self.depth < 1 or self.patch < 1 or self.image_size % self.patch or self.image_size < 1:
            raise UserError(f"image_size={self.image_size} must be a multiple of patch={self.patch}, depth at least 1")
        if heads < 1 or dim < 1 or dim % math.lcm(heads, 4):
            raise UserError(f"base={self.base} gives {dim} channels, but heads={heads} and 4 must divide them")

    @classmethod
    def fit(cls, stem: str, size: int, frozen_patches: bool) -> dict[str, Any]:
        return {"image_size": size, "patch": 4 if stem == "cifar" else 16, "frozen_patches": frozen_patches}

    @property
    def usual_size(self) -> int:  # type: ignore[override]
        return self.image_size

    @property
    def sizes(self) -> tuple[int, int]:
        """Embedding dimension and heads at width 1."""
        heads = HEADS[self.name]
        return heads * self.base, heads if self.heads is None else self.heads

    @property
    def blocks(self) -> tuple[int, ...]:  # type: ignore[override]
        return (self.depth,)

    def signature(self, width: Any) -> tuple[int, ...]:
        """Return the embedding dimension and heads; its blocks if it lacks any."""
        (width,), blocks = self.stagewise(width)
        dim, heads = self.sizes
        sizes = round_channels(width * dim, divisor=math.lcm(heads, 4)), heads
        return sizes if blocks == self.blocks else sizes + blocks

    def segments(self, name: str) -> tuple[int, ...]:
        """Attention has a segment for each head, and the fused qkv three of them."""
        _, heads = self.sizes
        if ".attn.qkv." in name:
            return (3 * heads,)
        return (1, heads) if name.endswith(".attn.proj.weight") else ()

    @classmethod
    def recognise(cls, shapes: Mapping[str, Sequence[int]]) -> dict[str, Any] | None:
        shapes = {cls.translated(name): shape for name, shape in shapes.items()}
        if "patch_embed.proj.weight" not in shapes or "blocks.0.attn.qkv.weight" not in shapes:
            return None
        dim, *_, patch = shapes["patch_embed.proj.weight"]
        name = "vit_tiny" if dim % (HEADS["vit_small"] * 64) else "vit_small"
        depth = len({name.split(".")[1] for name in shapes if name.startswith("blocks.")})
        sizes = {"base": dim // HEADS[name], "heads": max(1, dim // 64)}  # as in all ViTs of this design
        return {"backbone": name, "patch": patch, "depth": depth, **sizes}

    def translate(self, name: str) -> str:
        """torchvision uses other names for the same network than timm."""
        return self.translated(name)

    @staticmethod
    def translated(name: str) -> str:
        for theirs, ours in TORCHVISION.items():
            name = name.replace(theirs, ours)
        return name

    def channels(self, name: str) -> tuple[str | tuple[str, ...] | None, ...]:
        """Return one stream, and of each block the hidden channels and each head's: queries with keys, and values."""
        part, *inner = name.split(".")
        if part in ("cls_token", "pos_embed"):
            return None, None, "stream"
        if part == "head":
            return None, "stream"
        if part != "blocks" or "norm" in inner[1]:
            return "stream", None
        block, kind, layer, _ = inner
        if kind == "mlp":
            hidden = f"{block}.mlp"
            return (hidden, "stream") if layer == "fc1" else ("stream", hidden)
        _, heads = self.sizes
        keys, values = (tuple(f"{block}.{kind}{head}" for head in range(heads)) for kind in ("key", "value"))
        return (keys + keys + values, "stream") if layer == "qkv" else ("stream", values)

    def __call__(self, width: Any) -> ViT:
        dim, heads, *_ = self.signature(width)
        _, (depth,) = self.stagewise(width)
        return ViT(self, dim, heads, depth)


class ViT(nn.Module):
    """Features (N x D) of images (N x 3 x S x S); logits when there are classes."""

    def __init__(self, family: ViTFamily, dim: int, heads: int, depth: int) -> None:
        super().__init__()
        self.image_size = family.image_size
        self.patch_embed = PatchEmbed(family.patch, dim)
        self.cls_token = nn.Parameter(torch.empty(1, 1, dim)) if family.pool == "cls" else None
        self.pos_embed = nn.Parameter(sincos_positions(family.image_size // family.patch, dim, family.pool == "cls"))
        self.blocks = nn.Sequential(*(Block(dim, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.head = nn.Linear(dim, family.num_classes) if family.num_classes else nn.Identity()
        self.draw_weights()
        if family.positions == "learned":
            nn.init.trunc_normal_(self.pos_embed, std=0.02)
        else:
            self.pos_embed.requires_grad_(False)
        self.patch_embed.requires_grad_(not family.frozen_patches)

    def draw_weights(self) -> None:
        """Draw the first weights as MoCo v3 does."""
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]
                # q, k and v are three layers in one; a convolution of patches is a linear layer of their pixels.
                fan_out = len(module.weight) // (3 if name.endswith("qkv") else 1)
                bound = math.sqrt(6 / (module.weight[0].numel() + fan_out))
                nn.init.uniform_(module.weight, -bound, bound)
        if self.cls_token is not None:
            nn.init.normal_(self.cls_token, std=1e-6)

    def forward(self, images: Tensor) -> Tensor:
        if images.shape[2:] != (self.image_size, self.image_size):
            raise UserError(f"this network takes images of {self.image_size} pixels, not {tuple(images.shape[2:])}")
        x = self.patch_embed(images)  # N x patches x D
        if self.cls_token is not None:
            x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], dim=1)
        x = self.norm(self.blocks(x + self.pos_embed))
        return self.head(x.mean(dim=1) if self.cls_token is None else x[:, 0])


class PatchEmbed(nn.Module):
    def __init__(self, patch: int, dim: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, dim, patch, patch)

    def forward(self, images: Tensor) -> Tensor:
        return self.proj(images).flatten(2).transpose(1, 2)


class Block(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = Mlp(dim, 4 * dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # each N x heads x tokens x d
        mixed = learned_in_32_bits(F.scaled_dot_product_attention, q, k, v)
        return self.proj(mixed.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.act(self.fc1(x)))


def sincos_positions(side: int, dim: int, cls: bool) -> Tensor:
    """Return MoCo v3's fixed positions (1 x tokens x D), zero for the class token, the channels in another order.

    There, all channels of sin(x) come first, then those of cos(x), sin(y), cos(y): a leading slice would lose the
    rows. Here the four stand side by side, frequency by frequency, so that a narrow network has the same positions as
    a wide one in every channel that they share, and lacks only the lowest frequencies.
    """
    frequencies = TEMPERATURE ** -(torch.arange(dim // 4) / (dim // 4))
    angles = torch.arange(side)[:, None] * frequencies  # side x D/4
    x, y = angles.expand(side, side, -1), angles[:, None].expand(side, side, -1)
    grid = torch.stack([x.sin(), x.cos(), y.sin(), y.cos()], dim=-1).view(1, side * side, dim)
    return F.pad(grid, (0, 0, 1, 0)) if cls else grid
