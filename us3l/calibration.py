"""Batch-norm statistics: collected for each width on real images, kept with the model, refused for other weights."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from us3l.system.errors import UserError
from us3l.tensors import KINDS, batch_norms, tensors_of
from us3l.width import AnyWidth, Width

if TYPE_CHECKING:
    from us3l.slimmable import Slimmable

ImageBatches = Tensor | Iterable[Tensor | Sequence[Tensor]]
Statistics = dict[str, Tensor]
"""Running means and variances of one network's batch norms, by their names in its state dict."""
PREFIX, WEIGHTS = "statistics.", "weights.sha256"  # in the names of a state dict


class Calibration(NamedTuple):
    """The statistics of one network."""

    width: Width
    statistics: Statistics
    weights: str
    """The digest of the weights that they belong to."""


class Calibrations:
    """The statistics of each network of a slimmable network that has any, by its signature."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, Calibration] = {}

    def __iter__(self) -> Iterator[Calibration]:
        return iter(self._kept.values())

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, signature: Hashable) -> Calibration | None:
        return self._kept.get(signature)

    def keep(self, signature: Hashable, calibration: Calibration | None) -> None:
        """Keep one, as the last; None drops the one that is there."""
        self._kept.pop(signature, None)
        if calibration is not None:
            self._kept[signature] = calibration

    def clear(self) -> None:
        self._kept.clear()

    def rename_weights(self, old: str, new: str) -> None:
        """Say that the same weights have another digest now."""
        self._kept = {key: one._replace(weights=new) if one.weights == old else one for key, one in self._kept.items()}

    def to_state(self, prefix: str) -> dict[str, Tensor]:
        """Return statistics and the digests of their weights as tensors: any reader of checkpoints takes them."""
        state: dict[str, Tensor] = {}
        for width, statistics, weights in self:
            place = f"{prefix}{PREFIX}{width}/"
            state |= {place + name: tensor for name, tensor in statistics.items()}
            state[place + WEIGHTS] = torch.tensor(list(bytes.fromhex(weights)), dtype=torch.uint8)
        return state


def take_from_state(state: dict[str, Any], prefix: str, errors: list[str]) -> list[Calibration]:
    """Remove what `to_state` made from a state dict; entries that cannot be parsed are added to `errors`."""
    start = prefix + PREFIX
    widths: dict[str, Statistics] = {}
    for key in [key for key in state if key.startswith(start)]:
        width, _, name = key.removeprefix(start).partition("/")
        widths.setdefault(width, {})[name] = state.pop(key)
    calibrations = []
    for text, statistics in widths.items():
        try:
            weights = bytes(statistics.pop(WEIGHTS).tolist()).hex()
            copies = {name: tensor.detach().cpu().clone() for name, tensor in statistics.items()}
            calibrations.append(Calibration(Width(text), copies, weights))
        except (KeyError, ValueError) as error:
            errors.append(f"the statistics of width {text} do not fit: {error}")
    return calibrations


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
        images: Preprocessed: one tensor, or batches as a loader gives them (of a tuple, the first element is used).
        widths: Which widths or sub-networks (default: every distinct network).
        batch_size: The images are regrouped into batches of this size, so the batch size of the loader does not matter.
        progress: Called with a number of images each time that networks have seen a batch, once for each of them.
    """
    asked: Iterable[AnyWidth] = net.widths
    if widths is not None:
        asked = [widths] if isinstance(widths, int | float | str | Width) else widths
    networks = calibrated_networks(net, images, asked, batch_size, progress)
    if not batch_norms(net.full):
        return
    weights = net.certain_digest()
    for width, network in networks.items():
        net.set_statistics(width, statistics_of(network), weights)


@torch.no_grad()
def calibrated_networks(
    net: Slimmable,
    images: ImageBatches,
    widths: Iterable[AnyWidth],
    batch_size: int = 256,
    progress: Callable[[int], None] | None = None,
) -> dict[Width, nn.Module]:
    """Return plain networks on the shared weights with statistics of these images; `net` stays as it is.

    Args:
        net: The network.
        images: As for `calibrate`.
        widths: Those of the networks.
        batch_size: As for `calibrate`.
        progress: As for `calibrate`.
    """
    networks = {width: net.build(width, blank_statistics(net, width)) for width in map(net.check, widths)}
    if not batch_norms(net.full):
        return networks
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
    return {width: network.eval() for width, network in networks.items()}


def chain_of(net: Slimmable, network: nn.Module) -> list[nn.Module]:
    """Return the network as modules in order, if its family can tell them, else as a whole."""
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
    """Return a value that is the same for modules that have the same shared weights, in memory, not only in value."""
    tensors = tensors_of(module).values()
    return type(module), tuple((tensor.data_ptr(), tensor.shape, tensor.stride()) for tensor in tensors)


def copy_statistics(source: nn.Module, target: nn.Module) -> None:
    for ours, theirs in zip(batch_norms(target).values(), batch_norms(source).values(), strict=True):
        for kind in KINDS if theirs.track_running_stats else ():
            getattr(ours, kind).copy_(getattr(theirs, kind))


def blank_statistics(net: Slimmable, width: Width) -> Statistics:
    norms = batch_norms(net.skeleton(width))
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
    """Return batches of exactly `size` images, then the rest, if it has more than one image or is all there is."""
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
