"""Batch-norm statistics: collected for each width on real images, kept with the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor

from us3l.errors import UserError
from us3l.slimmable import Slimmable, Statistics, batch_norms
from us3l.width import Width

KINDS = ("running_mean", "running_var")
Images = Tensor | Iterable[Tensor | Sequence[Tensor]]


@torch.no_grad()
def calibrate(
    net: Slimmable,
    images: Images,
    widths: Iterable[Width] | float | None = None,
    batch_size: int = 256,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Collect the batch-norm statistics of each width (default: of every distinct network), and keep them with `net`.

    `images` are preprocessed: one tensor, or batches as a loader gives them (of pairs, the first is taken). They are
    grouped anew into batches of `batch_size`, so that the result does not depend on the loader's; statistics are the
    average over these batches, weighted by their sizes. `progress` is called with the number of images each
    time that a network has seen a batch.
    """
    if isinstance(widths, int | float):
        widths = [widths]
    chosen = [net.check(width) for width in (net.widths if widths is None else widths)]
    if not batch_norms(net.full):
        return
    networks = {width: net.build(width, blank_statistics(net, width), torch.detach).eval() for width in chosen}
    seen = 0
    device = next(net.full.parameters()).device
    for batch in regroup(images, batch_size):
        batch = batch.to(device, memory_format=torch.channels_last if batch.ndim == 4 else torch.preserve_format)
        seen += len(batch)
        if seen < 2:
            break  # one image has no variance
        for network in networks.values():
            for norm in batch_norms(network).values():
                norm.train()
                norm.momentum = len(batch) / seen  # so that the running statistics are the mean so far
            network(batch)
            if progress:
                progress(len(batch))
    if seen < 2:
        raise UserError(f"calibration needs at least two images, got {seen}")
    for width, network in networks.items():
        net.set_statistics(width, statistics_of(network))


def blank_statistics(net: Slimmable, width: Width) -> Statistics:
    norms = batch_norms(net.skeleton(width, tracking=True))
    return {
        f"{name}.{kind}": torch.zeros(norm.num_features)
        for name, norm in norms.items()
        for kind in KINDS
        if norm.track_running_stats
    }


def statistics_of(network: torch.nn.Module) -> Statistics:
    return {
        f"{name}.{kind}": getattr(norm, kind).cpu().clone()
        for name, norm in batch_norms(network).items()
        for kind in KINDS
        if norm.track_running_stats
    }


def regroup(images: Images, size: int) -> Iterator[Tensor]:
    """Batches of exactly `size` images, then the rest, if it has more than one image or is all there is."""
    if isinstance(images, Tensor):
        images = images.split(size)
    held: list[Tensor] = []
    yielded = False
    for item in images:
        held.append(item if isinstance(item, Tensor) else item[0])
        while sum(map(len, held)) >= size:
            whole = torch.cat(held)
            yield whole[:size]
            held, yielded = [whole[size:]], True
    rest = sum(map(len, held))
    if rest > 1 or (rest and not yielded):
        yield torch.cat(held)
