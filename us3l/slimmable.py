"""The idea: the network at width w owns the leading block of every tensor of the network at width 1.

A *family* is a function `width -> nn.Module` that builds a plain network. A family may also have
- `signature(width)`: a cheap and hashable summary of all shapes at that width (else the shapes themselves serve);
- `stages`: how many numbers a width has when it is given stage by stage (else widths are single numbers);
- `segments(name)`: for a tensor whose axes are made of several segments, such as fused qkv, their number on each axis;
  each segment is sliced on its own;
- `chain(network)`: the modules that one of its networks applies one after another, up to the last batch norm, so that
  networks which begin alike are calibrated together; modules on the same weights must compute the same.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from us3l.errors import UserError
from us3l.tensors import (
    SegmentCopy,
    assign,
    batch_norms,
    check_nested,
    forget_statistics,
    leading,
    own_copy,
    tensors_of,
)
from us3l.width import Width, distinct_widths

Family = Callable[[Any], nn.Module]
Statistics = dict[str, Tensor]
"""Running means and variances of one network's batch norms, by their names in its state dict."""


class Slimmable(nn.Module):
    """A family of plain networks that share one set of weights.

    Called with a width, it runs that network on the shared weights, and gradients flow into them. Batch norm keeps no
    running statistics here: it uses those of the batch, except in eval mode at widths that `us3l.calibrate` has seen.

    `switchable` widths, if given, are the only ones, and each has batch-norm weights and biases of its own (S-Net).

    >>> net = Slimmable(lambda width: nn.Linear(4, round(8 * width)))
    >>> net(torch.ones(1, 4), width=0.5).shape
    torch.Size([1, 4])
    """

    def __init__(self, family: Family, min_width: float = 0.25, switchable: Sequence[float] | None = None) -> None:
        super().__init__()
        self.switchable = tuple(sorted(switchable)) if switchable is not None else ()
        if switchable is not None and 1.0 not in self.switchable:
            raise UserError(f"the switchable widths {self.switchable} must include 1")
        min_width = min(self.switchable, default=min_width)
        if not 0 < min_width <= 1:
            raise UserError(f"min_width={min_width} must lie above 0 and at most at 1")
        self.family = family
        self.min_width = min_width
        full = family(1.0)
        if not isinstance(full, nn.Module) or not any(True for _ in full.parameters()):
            raise UserError(f"the family must build networks with parameters, but family(1.0) is {type(full).__name__}")
        self.full = forget_statistics(full)
        self.statistics: dict[Hashable, tuple[Width, Statistics]] = {}
        self.metadata: dict[str, Any] = {}  # plain values that travel with a saved model, such as its preprocessing
        self._skeletons: dict[tuple[Hashable, bool], nn.Module] = {}
        self._shapes: dict[Width, Hashable] = {}
        self._views: dict[Hashable, tuple[nn.Module, list[SegmentCopy]]] = {}
        if len({self.signature(width) for width in self.switchable}) < len(self.switchable):
            raise UserError(f"some of the switchable widths {self.switchable} mean the same network")
        # Those of width 1, the last, are the full network's.
        self.norms = nn.ModuleList(
            nn.ParameterList(self.leading(width)[name].detach().clone() for name in self._norm_names(width))
            for width in self.switchable[:-1]
        )

    # Which network a width means

    def check(self, width: Width) -> Width:
        """The width as a number or a tuple of them, or an error that says what is wrong with it."""
        try:
            many = isinstance(width, Sequence) and not isinstance(width, str)
            width = tuple(map(float, width)) if many else float(width)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            raise UserError(f"{width!r} is no width: give a number, or one for each stage") from None
        for number in width if isinstance(width, tuple) else (width,):
            if not (math.isfinite(number) and self.min_width <= number <= 1):
                raise UserError(f"width {number:g} is outside the range of this network, {self.min_width:g} to 1")
        stages = getattr(self.family, "stages", None)
        if isinstance(width, tuple) and len(width) != stages:
            needs = f"{stages} numbers" if stages else "a single number"
            raise UserError(f"width {width} has {len(width)} numbers, but this network takes {needs}")
        if self.switchable and width not in self.switchable:
            known = ", ".join(f"{known:g}" for known in self.switchable)
            raise UserError(f"width {width} is none of this network's switchable widths, {known}")
        return width

    def signature(self, width: Width) -> Hashable:
        """Equal for widths that mean the same network."""
        width = self.check(width)
        if hasattr(self.family, "signature"):
            return self.family.signature(width)
        if width not in self._shapes:
            skeleton = self._build_skeleton(width)
            self._shapes[width] = tuple((name, tensor.shape) for name, tensor in tensors_of(skeleton).items())
        return self._shapes[width]

    @cached_property
    def _canonical(self) -> dict[Hashable, float]:
        widths = self.switchable or distinct_widths(self.signature, self.min_width, 1.0)
        return {self.signature(width): width for width in widths}

    @property
    def widths(self) -> list[float]:
        """One width for each distinct network in range, ascending."""
        return list(self._canonical.values())

    def among(self, widths: Sequence[float]) -> list[float]:
        """Those of some usual widths that this network has, widest first, and its narrowest in any case."""
        if self.switchable:
            return list(reversed(self.switchable))
        return sorted({self.min_width, *(width for width in widths if self.min_width <= width <= 1)}, reverse=True)

    def canonical(self, width: float) -> float:
        """The member of `widths` that means the same network."""
        return self._canonical.get(self.signature(width), width)  # widths by stage have no shorter name

    # Running a network on the shared weights

    def forward(self, images: Tensor, width: Width = 1.0) -> Tensor:
        return self.bind(width)(images)

    def bind(self, width: Width) -> Callable[[Tensor], Tensor]:
        """The network of that width as a function; it slices the weights once for any number of batches.

        Where gradients are recorded, it has the weights of this moment: bind anew after each update.
        """
        signature = self.signature(width)
        _, statistics = self.statistics.get(signature, (width, {}))
        if self.training or not statistics:
            if signature == self.signature(1.0):
                return self.full
            statistics = {}
        skeleton = self.skeleton(width, tracking=bool(statistics)).train(self.training)
        tensors = self.slices(width, copy=torch.is_grad_enabled()) | self._like_weights(statistics)
        return lambda images: functional_call(skeleton, tensors, (images,))

    def slices(self, width: Width, copy: bool = False) -> dict[str, Tensor]:
        """The tensors of that network: views into the full network's, or copies of them, but for norms of its own."""
        return self.leading(width, copy) | self.own_norms(width)

    def leading(self, width: Width, copy: bool = False) -> dict[str, Tensor]:
        full = tensors_of(self.full)
        return {
            name: leading(full[name], tensor.shape, self._segments(name), copy)
            for name, tensor in tensors_of(self.skeleton(width)).items()
        }

    def _segments(self, name: str) -> Sequence[int]:
        return self.family.segments(name) if hasattr(self.family, "segments") else ()

    def _norm_names(self, width: Width) -> list[str]:
        norms = batch_norms(self.skeleton(width))
        return [f"{name}.{kind}" for name, norm in norms.items() for kind, _ in norm.named_parameters()]

    def own_norms(self, width: Width) -> dict[str, Tensor]:
        width = self.check(width)
        if width not in self.switchable[:-1]:
            return {}
        own = self.norms[self.switchable.index(width)]
        return dict(zip(self._norm_names(width), own.parameters(), strict=True))

    def weights(self) -> dict[str, Tensor]:
        """All tensors that are learned or constant, by name; those of one switchable width begin with it."""
        own = {
            f"{width:g}/{name}": tensor
            for width in self.switchable[:-1]
            for name, tensor in self.own_norms(width).items()
        }
        return tensors_of(self.full) | own

    # Plain networks

    def at(self, width: Width) -> nn.Module:
        """The plain network of that width on the same storage, in eval mode. Switching between widths is free.

        Tensors of several segments cannot share storage: each call brings them up to date.
        """
        signature = self.signature(width)
        if signature not in self._views:
            view = self.build(width, self._calibration(width), torch.detach).requires_grad_(False)
            full = tensors_of(self.full)
            pairs = ((tensor, full[name], self._segments(name)) for name, tensor in tensors_of(view).items())
            self._views[signature] = view, [SegmentCopy(*pair) for pair in pairs if pair[2]]
        view, copies = self._views[signature]
        for copy in copies:
            copy.renew()
        return view.eval() if view.training else view

    def carve(self, width: Width) -> nn.Module:
        """The plain network of that width with a copy of its weights, in eval mode, ready to be trained or exported."""
        return self.build(width, self._calibration(width), own_copy).eval()

    def build(self, width: Width, statistics: Statistics | None, take: Callable[[Tensor], Tensor]) -> nn.Module:
        """The plain network of that width, on what `take` makes of each shared tensor."""
        module = self._build_skeleton(width)
        if not statistics:
            forget_statistics(module)
        shared = self.slices(width) | self._like_weights(statistics or {})
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
            check_nested(skeleton, self.full, width, self._segments)
            self._skeletons[key] = skeleton if tracking else forget_statistics(skeleton)
        return self._skeletons[key]

    def _build_skeleton(self, width: Width) -> nn.Module:
        try:
            with torch.device("meta"):
                return self.family(self.check(width))
        except (NotImplementedError, RuntimeError) as error:
            raise UserError(
                f"the family cannot build width {width} without memory ({error}): while building, it must not look at "
                "the values of tensors"
            ) from None

    # State

    def calibrated(self, width: Width) -> bool:
        """Whether the network of that width has batch-norm statistics, or needs none."""
        return self.signature(width) in self.statistics or not batch_norms(self.full)

    def set_statistics(self, width: Width, statistics: Statistics | None) -> None:
        """Keep the batch-norm statistics of that width, or drop them."""
        signature = self.signature(width)
        self.statistics.pop(signature, None)
        self._views.pop(signature, None)
        if statistics is not None:
            self.statistics[signature] = (width, statistics)

    def _like_weights(self, statistics: Statistics) -> Statistics:
        """On the device and of the type of the weights."""
        weight = next(self.full.parameters())
        return {name: tensor.to(weight) for name, tensor in statistics.items()}

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Slimmable:
        self._views.clear()  # moving or converting the weights gives them new storage
        return super()._apply(fn, recurse)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_views": {}, "_skeletons": {}}

    def load_plain(self, state: Mapping[str, Tensor]) -> None:
        """Take the weights of a plain network of width 1: the state dict of a torchvision or timm model.

        Batch-norm statistics in it become the calibration of width 1; all earlier calibration is dropped.
        """
        from us3l.storage import load_plain

        load_plain(self, state)

    def save(self, path: str | Path, overwrite: bool = False) -> None:
        """Write weights, statistics and description into a folder; see `us3l.load`."""
        from us3l.storage import save

        save(self, path, overwrite)
