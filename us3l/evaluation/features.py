"""Features of frozen networks."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from us3l.data.views import evaluation_view


@torch.no_grad()
def embed(
    network: nn.Module, images: Tensor, size: int, batch: int = 250, progress: Callable[[int], None] | None = None
) -> Tensor:
    """Features (N x C) of images (N x 3 x H x W, uint8), seen whole at `size` pixels."""
    device = next(network.parameters()).device
    found = []
    for part in images.split(batch):
        view = evaluation_view(part.to(device), size).contiguous(memory_format=torch.channels_last)
        found.append(network(view))
        if progress:
            progress(len(part))
    return torch.cat(found)
