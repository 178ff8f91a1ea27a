"""The idea: the network at width w owns the leading block of every tensor of the network at width 1.

A *family* is a function `width -> nn.Module` that builds a plain network. A family may also have
- `signature(width)`: a cheap and hashable summary of all shapes at that width (else the shapes themselves serve);
- `stages`: how many numbers a width has when it is given stage by stage (else widths are single numbers);
- `segments(name)`: for a tensor whose axes are made of several segments, such as fused qkv, their number on each axis;
  each segment is sliced on its own.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from us3l.errors import UserError
from us3l.width import Width, distinct_widths

Family = Callable[[Any], nn.Module]
Statistics = dict[str, Tensor]
"""Running means and variances of one network's batch norms, by their names in its state dict."""


class Slimmable(nn.Module):
    """A family of plain networks that share one set of weights.

    Called with a width, it runs that network on the shared weights, and gradients flow into them. Batch norm keeps no
    running statistics here: it uses those of the batch, except in eval mode at widths that `us3l.calibrate` has seen.

    >>> net = Slimmable(lambda width: nn.Linear(4, round(8 * width)))
    >>> net(torch.ones(1, 4), width=0.5).shape
    torch.Size([1, 4])
    """

    def __init__(self, family: Family, min_width: float = 0.25) -> None:
        super().__init__()
        if not 0 < min_width <= 1:
            raise UserError(f"min_width={min_width} must lie above 0 and at most at 1")
        self.family = family
        self.min_width = min_width
        self.full = forget_statistics(family(1.0))
        self.statistics: dict[Hashable, tuple[Width, Statistics]] = {}
        self.metadata: dict[str, Any] = {}  # plain values that travel with a saved model, such as its preprocessing
        self._skeletons: dict[tuple[Hashable, bool], nn.Module] = {}
        self._shapes: dict[Width, Hashable] = {}
        self._views: dict[Hashable, nn.Module] = {}

    # Which network a width means

    def check(self, width: Width) -> Width:
        """The width itself, or an error that says what is wrong with it."""
        for number in (width,) if isinstance(width, int | float) else width:
            if not (math.isfinite(number) and self.min_width <= number <= 1):
                raise UserError(f"width {number:g} is outside the range of this network, {self.min_width:g} to 1")
        stages = getattr(self.family, "stages", None)
        if not isinstance(width, int | float) and len(width) != stages:
            needs = f"{stages} numbers" if stages else "a single number"
            raise UserError(f"width {width} has {len(width)} numbers, but this network takes {needs}")
        return width

    def signature(self, width: Width) -> Hashable:
        """Equal for widths that mean the same network."""
        self.check(width)
        if hasattr(self.family, "signature"):
            return self.family.signature(width)
        if width not in self._shapes:
            skeleton = self._build_skeleton(width)
            self._shapes[width] = tuple((name, tensor.shape) for name, tensor in tensors_of(skeleton).items())
        return self._shapes[width]

    @cached_property
    def _canonical(self) -> dict[Hashable, float]:
        widths = distinct_widths(self.signature, self.min_width, 1.0)
        return {self.signature(width): width for width in widths}

    @property
    def widths(self) -> list[float]:
        """One width for each distinct network in range, ascending."""
        return list(self._canonical.values())

    def canonical(self, width: float) -> float:
        """The member of `widths` that means the same network."""
        return self._canonical[self.signature(width)]

    # Running a network on the shared weights

    def forward(self, images: Tensor, width: Width = 1.0) -> Tensor:
        return self.bind(width)(images)

    def bind(self, width: Width) -> Callable[[Tensor], Tensor]:
        """The network of that width as a function; it slices the weights once for any number of batches."""
        signature = self.signature(width)
        _, statistics = self.statistics.get(signature, (width, {}))
        if self.training or not statistics:
            if signature == self.signature(1.0):
                return self.full
            statistics = {}
        skeleton = self.skeleton(width, tracking=bool(statistics)).train(self.training)
        tensors = self.slices(width) | self._on_device(statistics)
        return lambda images: functional_call(skeleton, tensors, (images,))

    def slices(self, width: Width) -> dict[str, Tensor]:
        """The shared tensors of that network, as views into the full network's."""
        full = tensors_of(self.full)
        segments = getattr(self.family, "segments", lambda _: ())
        return {
            name: leading(full[name], tensor.shape, segments(name))
            for name, tensor in tensors_of(self.skeleton(width)).items()
        }

    # Plain networks

    def at(self, width: Width) -> nn.Module:
        """The plain network of that width on the same storage, in eval mode. Switching between widths is free."""
        signature = self.signature(width)
        if signature not in self._views:
            view = self.build(width, self._calibration(width), torch.detach)
            self._views[signature] = view.requires_grad_(False)
        return self._views[signature].eval()

    def carve(self, width: Width) -> nn.Module:
        """The plain network of that width with a copy of its weights, in eval mode, ready to be trained or exported."""
        return self.build(width, self._calibration(width), own_copy).eval()

    def build(self, width: Width, statistics: Statistics | None, take: Callable[[Tensor], Tensor]) -> nn.Module:
        """The plain network of that width, on what `take` makes of each shared tensor."""
        module = self._build_skeleton(width)
        if not statistics:
            forget_statistics(module)
        shared = self.slices(width) | self._on_device(statistics or {})
        assign(module, {name: take(tensor) for name, tensor in shared.items()})
        return module

    def _calibration(self, width: Width) -> Statistics | None:
        if not self.calibrated(width):
            warnings.warn(
                f"width {width} is not calibrated: batch norm will use the statistics of each batch it is given. "
                "Call us3l.calibrate(net, images) first.",
                stacklevel=3,
            )
        return self.statistics.get(self.signature(width), (width, None))[1]

    # Skeletons: shapes without memory, built once for each distinct network

    def skeleton(self, width: Width, tracking: bool = False) -> nn.Module:
        key = self.signature(width), tracking
        if key not in self._skeletons:
            skeleton = self._build_skeleton(width)
            check_nested(skeleton, self.full, width)
            self._skeletons[key] = skeleton if tracking else forget_statistics(skeleton)
        return self._skeletons[key]

    def _build_skeleton(self, width: Width) -> nn.Module:
        with torch.device("meta"):
            return self.family(width)

    # State

    def calibrated(self, width: Width) -> bool:
        """Whether the network of that width has batch-norm statistics, or needs none."""
        return self.signature(width) in self.statistics or not batch_norms(self.full)

    def set_statistics(self, width: Width, statistics: Statistics) -> None:
        signature = self.signature(width)
        self.statistics[signature] = (width, statistics)
        self._views.pop(signature, None)

    def _on_device(self, statistics: Statistics) -> Statistics:
        device = next(self.full.parameters()).device
        return {name: tensor.to(device) for name, tensor in statistics.items()}

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Slimmable:
        self._views.clear()  # moving or converting the weights gives them new storage
        return super()._apply(fn, recurse)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_views": {}, "_skeletons": {}}

    def save(self, path: str | Path, overwrite: bool = False) -> None:
        """Write weights, statistics and description into a folder; see `us3l.load`."""
        from us3l.storage import save

        save(self, path, overwrite)


def own_copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def leading(tensor: Tensor, shape: torch.Size, segments: Sequence[int] = ()) -> Tensor:
    """The leading block of that shape; on axes of several segments, the leading blocks of each, side by side.

    >>> leading(torch.arange(6), torch.Size([2])), leading(torch.arange(6), torch.Size([4]), segments=[2])
    (tensor([0, 1]), tensor([0, 1, 3, 4]))
    """
    if tensor.shape == shape:
        return tensor
    for axis, parts in enumerate(segments):
        if parts > 1 and tensor.shape[axis] != shape[axis]:
            pieces = tensor.unflatten(axis, (parts, -1)).narrow(axis + 1, 0, shape[axis] // parts)
            tensor = pieces.flatten(axis, axis + 1)
    return tensor[tuple(slice(n) for n in shape)]


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, without the batch-norm statistics, which are not shared among widths."""
    own = {f"{name}.{buffer}" for name, norm in batch_norms(module).items() for buffer in norm._buffers}
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    return {name: tensor for name, tensor in tensors.items() if name not in own}


def batch_norms(module: nn.Module) -> dict[str, _BatchNorm]:
    return {name: norm for name, norm in module.named_modules() if isinstance(norm, _BatchNorm)}


def forget_statistics(module: nn.Module) -> nn.Module:
    """Make batch norm use the statistics of each batch."""
    for norm in batch_norms(module).values():
        norm.track_running_stats = False
        norm.running_mean = norm.running_var = norm.num_batches_tracked = None
    return module


def check_nested(part: nn.Module, full: nn.Module, width: Width) -> None:
    whole = tensors_of(full)
    for name, tensor in tensors_of(part).items():
        if name not in whole:
            raise UserError(f"the family is not nested: {name!r} exists at width {width} but not at width 1")
        small, large = tuple(tensor.shape), tuple(whole[name].shape)
        if len(small) != len(large) or any(s > t for s, t in zip(small, large, strict=True)):
            raise UserError(
                f"the family is not nested: {name!r} has shape {small} at width {width}, "
                f"which is no leading block of its shape {large} at width 1"
            )


def assign(module: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Put tensors in the place of the module's own, sharing their storage; tied parameters stay tied."""
    tied: dict[int, nn.Parameter] = {}
    for name, old in list(module.named_parameters(remove_duplicate=False)):
        owner, _, leaf = name.rpartition(".")
        if id(old) not in tied:
            tied[id(old)] = nn.Parameter(tensors[name], requires_grad=old.requires_grad)
        module.get_submodule(owner)._parameters[leaf] = tied[id(old)]
    for name, buffer in list(module.named_buffers()):
        owner, _, leaf = name.rpartition(".")
        # Only num_batches_tracked has no source.
        module.get_submodule(owner)._buffers[leaf] = tensors.get(name, torch.zeros((), dtype=buffer.dtype))
