"""The channels of a network in order of importance, so that its leading slices are its best sub-networks.

A network computes the same whatever the order of its channels, if all tensors that share them are put in it together.
The family says which do: `Family.channels`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from us3l.slimmable import Slimmable
from us3l.system.errors import UserError
from us3l.tensors import KINDS, tensors_of

BATCH = 64  # images at a time


class Place(NamedTuple):
    """Where channels lie: the part of a tensor's axis that begins at `start`."""

    name: str
    axis: int
    start: int
    size: int

    def of(self, tensor: Tensor) -> Tensor:
        return tensor.narrow(self.axis, self.start, self.size)


@torch.no_grad()
def sort_channels(net: Slimmable, images: Tensor | None = None) -> dict[str, Tensor]:
    """Put channels that narrow widths lack last: those that matter least to the layers after them.

    Width 1 computes the same, but that its features, if these are among the channels, come in another order.
    The statistics of width 1 stay; those of other widths, which are other networks now, are dropped.

    Args:
        net: The network; its weights are changed in place.
        images: Preprocessed. The importance of a channel is its share of the variance that the layers after it get,
            measured on these; without images all channels are taken to vary equally, so that the weights decide.

    Returns:
        The new order by the names that the family gives to channels: which old channel each new one is.
    """
    places = places_of(net)
    weights = tensors_of(net.full)
    variances = {} if images is None else input_variances(net, images)
    orders = {
        channels: importance(found, weights, variances).argsort(descending=True, stable=True)
        for channels, found in places.items()
        if narrows(net, found[0])
    }
    statistics = dict(net.statistics(1.0))
    for channels, order in orders.items():
        for place in places[channels]:
            part = place.of(weights[place.name])
            part.copy_(part.index_select(place.axis, order.to(part.device)))
            for name in (place.name.replace(".weight", f".{kind}") for kind in KINDS):
                if name in statistics:
                    statistics[name] = statistics[name][order]
    net.norms.reset(net.shared_slices)
    net.forget_calibration()
    if statistics:
        net.set_statistics(1.0, statistics)
    return orders


def places_of(net: Slimmable) -> dict[str, list[Place]]:
    """Return all places of each of a network's channels, by the names that its family gives to them."""
    places: dict[str, list[Place]] = defaultdict(list)
    for name, tensor in tensors_of(net.full).items():
        for axis, (channels, size) in enumerate(zip(net.family.channels(name), tensor.shape, strict=False)):
            names = (channels,) if isinstance(channels, str) else channels or ()
            for number, each in enumerate(names):
                places[each].append(Place(name, axis, number * size // len(names), size // len(names)))
    for channels, found in places.items():
        if len({place.size for place in found}) > 1:
            shown = ", ".join(f"{place.name} {place.size}" for place in found[:4])
            raise UserError(f"the family's channels {channels!r} are not equally many everywhere: {shown}")
    return places


def narrows(net: Slimmable, place: Place) -> bool:
    """Return whether narrow widths have fewer of these channels."""
    narrow, full = (tensors_of(net.skeleton(width))[place.name].shape[place.axis] for width in (net.min_width, 1.0))
    return narrow < full


def importance(places: list[Place], weights: Mapping[str, Tensor], variances: Mapping[str, Tensor]) -> Tensor:
    """Of each channel: its share of what the layers that take these channels get, summed over the layers.

    Channels that no layer takes, a head's queries and keys, go by the weights that make them.
    """
    matrices = [place for place in places if weights[place.name].ndim > 1 and place.name.endswith(".weight")]
    takers = [place for place in matrices if place.axis == 1]
    total = torch.zeros(places[0].size)
    for place in takers or matrices:
        part = place.of(weights[place.name]).detach().float().cpu()
        energy = part.square().sum(dim=[axis for axis in range(part.ndim) if axis != place.axis])
        if place.name in variances and place.axis == 1:
            energy = energy * variances[place.name].narrow(0, place.start, place.size)
        total += energy / energy.sum().clamp_min(torch.finfo(energy.dtype).tiny)
    return total


def input_variances(net: Slimmable, images: Tensor) -> dict[str, Tensor]:
    """Return the variance of each channel that the layers of width 1 take, by the names of their weights."""
    network = net.at(1.0)
    device = next(net.full.parameters()).device
    with watched(network) as found:
        for batch in images.split(BATCH):
            network(batch.to(device))
    return {name: torch.stack(each).mean(dim=0).cpu() for name, each in found.items()}


@contextmanager
def watched(network: nn.Module) -> Iterator[dict[str, list[Tensor]]]:
    """Yield the variances of what convolutions and linear layers are given while it runs, a batch at a time."""
    found: dict[str, list[Tensor]] = defaultdict(list)

    def note(name: str, layer: nn.Module, given: tuple[Tensor, ...]) -> None:
        channels = given[0].detach().movedim(1 if isinstance(layer, nn.Conv2d) else -1, 0)
        found[f"{name}.weight"].append(channels.float().flatten(1).var(dim=1))

    layers = ((name, part) for name, part in network.named_modules() if isinstance(part, nn.Conv2d | nn.Linear))
    handles = [part.register_forward_pre_hook(partial(note, name)) for name, part in layers]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()
