"""Batch-norm statistics: collected for each width on real images, kept with the model."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from us3l.slimmable import Slimmable
from us3l.statistics import Statistics
from us3l.system.errors import UserError
from us3l.tensors import KINDS, batch_norms, tensors_of
from us3l.width import AnyWidth, Width

ImageBatches = Tensor | Iterable[Tensor | Sequence[Tensor]]


@torch.no_grad()
def calibrate(
    net: Slimmable,
    images: ImageBatches,
    widths: Iterable[AnyWidth] | AnyWidth | None = None,
    batch_size: int = 256,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Collect the batch-norm statistics of each width on the present weights, and keep them with the network.

    Statistics are the average over batches, weighted by their sizes.

    Args:
        net: The network, which gets the statistics; its weights stay as they are.
        images: Preprocessed: one tensor, or batches as a loader gives them (of pairs, the first is taken).
        widths: Which widths or sub-networks (default: every distinct network).
        batch_size: The images are regrouped into batches of this size, so the batch size of the loader does not matter.
        progress: Called with a number of images each time that networks have seen a batch, once for each of them.
    """
    asked: Iterable[AnyWidth] = net.widths
    if widths is not None:
        asked = [widths] if isinstance(widths, int | float | str | Width) else widths
    chosen = [net.check(width) for width in asked]
    if not batch_norms(net.full):
        return
    networks = {width: net._build(width, blank_statistics(net, width), torch.detach).eval() for width in chosen}
    chains = [chain_of(net, network) for network in networks.values()]
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
        for finished in run_together(batch, chains):
            if progress:
                progress(finished * len(batch))
    if seen < 2:
        raise UserError(f"calibration needs at least two images, got {seen}")
    weights = net._certain_digest()
    for width, network in networks.items():
        net.set_statistics(width, statistics_of(network), weights)


def chain_of(net: Slimmable, network: nn.Module) -> list[nn.Module]:
    """The network as modules in order, if its family can tell them, else as a whole."""
    chain = list(net.family.chain(network))
    inside = {norm for module in chain for norm in batch_norms(module).values()}
    for name, norm in batch_norms(network).items():
        if norm not in inside:
            raise UserError(f"the family's chain lacks the batch norm {name!r}: it must reach up to the last one")
    return chain


def run_together(x: Tensor, chains: list[list[nn.Module]]) -> Iterator[int]:
    """Run networks on a batch, each given as its modules in order, and tell how many have finished each time.

    Networks of similar widths begin with the same modules on the same weights: until they part, they run as one.
    """
    step = 0
    while chains:
        alike: dict[Hashable, list[list[nn.Module]]] = {}
        for chain in chains:
            alike.setdefault(weights_of(chain[step]), []).append(chain)
        if len(alike) > 1:
            version = x._version
            for group in alike.values():
                if x._version != version:
                    raise UserError(
                        f"{type(chains[0][step]).__name__}, in the family's chain, changes its input in place, "
                        "which other widths need too: let it take a copy, or leave the chain out of the family"
                    )
                yield from run_together(x, [chain[step:] for chain in group])
            return
        first, *others = (chain[step] for chain in chains)
        x = first(x)
        for other in others:
            copy_statistics(first, other)
        step += 1
        going = [chain for chain in chains if step < len(chain)]
        if len(going) < len(chains):
            yield len(chains) - len(going)
        chains = going


def weights_of(module: nn.Module) -> Hashable:
    """The same for modules that have the same shared weights, in memory, not only in value."""
    tensors = tensors_of(module).values()
    return type(module), tuple((tensor.data_ptr(), tensor.shape, tensor.stride()) for tensor in tensors)


def copy_statistics(source: nn.Module, target: nn.Module) -> None:
    for ours, theirs in zip(batch_norms(target).values(), batch_norms(source).values(), strict=True):
        for kind in KINDS if theirs.track_running_stats else ():
            getattr(ours, kind).copy_(getattr(theirs, kind))


def blank_statistics(net: Slimmable, width: Width) -> Statistics:
    norms = batch_norms(net.skeleton(width, tracking=True))
    return {
        f"{name}.{kind}": torch.zeros(norm.num_features)
        for name, norm in norms.items()
        for kind in KINDS
        if norm.track_running_stats
    }


def statistics_of(network: nn.Module) -> Statistics:
    return {
        f"{name}.{kind}": getattr(norm, kind).cpu().clone()
        for name, norm in batch_norms(network).items()
        for kind in KINDS
        if norm.track_running_stats
    }


def regroup(images: ImageBatches, size: int) -> Iterator[Tensor]:
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
