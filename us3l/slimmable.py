"""The idea: the network at width w owns the leading block of every tensor of the network at width 1.

A *family* is a function `width -> nn.Module` that builds a plain network; `us3l.families.family` says what else it may
tell about its networks.
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

from us3l.families.family import Family, as_family
from us3l.statistics import Calibration, Statistics, take_from_state, to_state
from us3l.switchable import SwitchableNorms
from us3l.system.errors import UserError, told
from us3l.tensors import (
    SegmentCopy,
    Watch,
    WithoutFilling,
    assign,
    batch_norms,
    check_nested,
    check_statistics,
    digest,
    forget_statistics,
    leading,
    own_copy,
    tensors_of,
)
from us3l.width import AnyWidth, Width, distinct_widths, warn_if_slow

PASSING = 32  # sub-networks whose skeletons are kept: there are any number of them
COARSE = 1e-3  # how near to each other widths are tried where each must be built


class Slimmable(nn.Module):
    """A family of plain networks that share one set of weights.

    Called with a width, it runs that network on the shared weights, and gradients flow into them. Batch norm keeps no
    running statistics here: it uses those of the batch, except in eval mode at widths that `us3l.calibrate` has seen.
    Such statistics belong to the weights of that moment. When these change, they are refused until the next
    calibration.

    Args:
        family: Builds the plain network of a width: any function `width -> nn.Module`, or a `Family`.
        min_width: The narrowest width.
        switchable: If given, these are the only widths, and each has batch-norm weights and biases of its own (S-Net).

    >>> net = Slimmable(lambda width: nn.Linear(4, round(8 * width)))
    >>> net(torch.ones(1, 4), width=0.5).shape
    torch.Size([1, 4])
    """

    _skeletons: dict[tuple[Hashable, bool], nn.Module]
    _passing: list[tuple[Hashable, bool]]
    """Which of them are of sub-networks, the oldest first."""
    _views: dict[Hashable, tuple[nn.Module, list[SegmentCopy]]]
    _addresses: list[int]
    """Where the weights lay that the views lie on."""
    _digest: tuple[object, str] | None
    """What the watch saw when it was computed, and the digest."""

    def __init__(
        self,
        family: Family | Callable[[Any], nn.Module],
        min_width: float = 0.25,
        switchable: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        norms = SwitchableNorms(switchable)
        min_width = min(norms.widths, default=min_width)
        if not 0 < min_width <= 1:
            raise UserError(f"min_width={min_width} must lie above 0 and at most at 1")
        self.family = as_family(family)
        self.min_width = min_width
        full = self._called(1.0)
        if not isinstance(full, nn.Module) or not any(True for _ in full.parameters()):
            raise UserError(f"the family must build networks with parameters, but family(1.0) is {type(full).__name__}")
        self.full = forget_statistics(full)
        self.norms = norms
        self.statistics: dict[Hashable, Calibration] = {}
        self.metadata: dict[str, Any] = {}  # plain values that travel with a saved model, such as its preprocessing
        self._shapes: dict[Width, Hashable] = {}
        self._forget_tensors()
        if len({self.signature(width) for width in self.switchable}) < len(self.switchable):
            raise UserError(f"some of the switchable widths {self.switchable} mean the same network")
        norms.fill(self.skeleton, self._leading)

    # Which network a width means

    @property
    def switchable(self) -> tuple[float, ...]:
        """The only widths, ascending, if each has norms of its own; else there are none."""
        return self.norms.widths

    def check(self, width: AnyWidth) -> Width:
        """Return the width, by a simpler name if all its blocks are there; an error if this network does not have it.

        Args:
            width: A number, one for each stage, a `Width` or its name.

        Raises:
            UserError: It is not a width of this network; the message says why.
        """
        checked = Width(width)
        for number in checked.widths:
            if not (math.isfinite(number) and self.min_width <= number <= 1):
                raise UserError(f"width {number:g} is outside the range of this network, {self.min_width:g} to 1")
        if not checked.plain:
            checked = self._check_stages(checked)
        self.norms.check(checked)
        return checked

    def _check_stages(self, width: Width) -> Width:
        widths, depths, blocks = width.widths, width.depths, self.family.blocks
        stages = self.family.stages or (len(blocks) if blocks else None)
        if len(widths) != stages:
            needs = f"{stages} numbers" if stages and stages > 1 else "a single number"
            raise UserError(f"width {width} has {len(widths)} numbers, but this network takes {needs}")
        if depths is not None:
            if blocks is None:
                raise UserError(f"{width} leaves out blocks, but networks of this family all have the same")
            if not all(1 <= depth <= count for depth, count in zip(depths, blocks, strict=True)):
                most = ", ".join(map(str, blocks))
                raise UserError(f"{width} is not a sub-network: its stages have 1 to {most} blocks")
            if depths != blocks:
                return width
        return Width(widths)

    def signature(self, width: AnyWidth) -> Hashable:
        """A value that is equal for widths that mean the same network.

        Args:
            width: A number, one for each stage, or a `Width`.
        """
        width = self.check(width)
        signature = self.family.signature(width.for_family())
        if signature is not None:
            return signature
        if width not in self._shapes:
            skeleton = self._build_skeleton(width)
            self._shapes[width] = tuple((name, tensor.shape) for name, tensor in tensors_of(skeleton).items())
        return self._shapes[width]

    @cached_property
    def _canonical(self) -> dict[Hashable, Width]:
        widths: Sequence[float] = self.switchable
        if not widths and self.family.signature(1.0) is not None:
            widths = distinct_widths(self.signature, self.min_width, 1.0)
        elif not widths:
            widths = distinct_widths(warn_if_slow(self.signature), self.min_width, 1.0, COARSE)
        return {self.signature(width): Width(width) for width in widths}

    @property
    def widths(self) -> list[Width]:
        """One width for each distinct network in range, ascending.

        Those of a family without `signature` are found by building networks, and only those that exist on a
        thousandth of the range or more.
        """
        return list(self._canonical.values())

    def among(self, widths: Sequence[float]) -> list[Width]:
        """Those of some usual widths that this network has, widest first, and its narrowest in any case.

        Args:
            widths: Such as the nine of the paper.

        Returns:
            The only widths, if it has a fixed list of them.
        """
        if self.switchable:
            return list(map(Width, reversed(self.switchable)))
        within = {self.min_width, *(width for width in widths if self.min_width <= width <= 1)}
        return list(map(Width, sorted(within, reverse=True)))

    def canonical(self, width: AnyWidth) -> Width:
        """The member of `widths` that means the same network: channel counts are rounded, so many widths do.

        Args:
            width: Any width in range.

        Returns:
            A width, for instance 0.4 for 0.37; a sub-network whose stages differ stays as it is.
        """
        checked = self.check(width)
        return self._canonical.get(self.signature(checked), checked)

    # Running a network on the shared weights

    def forward(self, images: Tensor, width: AnyWidth = 1.0) -> Tensor:
        """Outputs of the network of that width, on the shared weights; gradients flow into them.

        Args:
            images: A batch, preprocessed.
            width: A number, one for each stage, or a `Width`.
        """
        return self.bind(width)(images)

    def bind(self, width: AnyWidth) -> Callable[[Tensor], Tensor]:
        """The network of that width as a function; it slices the weights once for any number of batches.

        Where gradients are recorded, it has the weights of this moment: bind again after each update.

        Args:
            width: A number, one for each stage, or a `Width`.

        Returns:
            A function of a batch of images. In eval mode, it uses the statistics of that width, if it is calibrated.
        """
        signature = self.signature(width)
        statistics = {} if self.training else self._trusted_statistics(signature)
        if not statistics and signature == self.signature(1.0):
            return self.full
        skeleton = self.skeleton(width, tracking=bool(statistics)).train(self.training)
        check_statistics(statistics, skeleton, self.check(width))
        tensors = self._slices(width, copy=torch.is_grad_enabled()) | self._like_weights(statistics)
        return lambda images: functional_call(skeleton, tensors, (images,))

    def _slices(self, width: AnyWidth, copy: bool = False) -> dict[str, Tensor]:
        """The tensors of that network: views into the full network's, or copies of them, but for norms of its own."""
        return self._leading(width, copy) | self.norms.of(self.check(width))

    def _leading(self, width: AnyWidth, copy: bool = False) -> dict[str, Tensor]:
        full = tensors_of(self.full)
        return {
            name: leading(full[name], tensor.shape, self.family.segments(name), copy)
            for name, tensor in tensors_of(self.skeleton(width)).items()
        }

    def weights(self) -> dict[str, Tensor]:
        """All tensors that are learned or constant, by name; those of one switchable width begin with it."""
        return tensors_of(self.full) | self.norms.all()

    @property
    def digest(self) -> str:
        """The SHA-256 of the weights. It is computed once after each change of them."""
        seen = self._watch.look()
        if self._digest is None or self._digest[0] != seen:
            self._digest = seen, digest(self.weights())
        return self._digest[1]

    def _certain_digest(self) -> str:
        """The same, computed in any case: a change of few values through `.data` may escape notice."""
        self._digest = None
        return self.digest

    # Plain networks

    def at(self, width: AnyWidth) -> nn.Module:
        """The plain network of that width on the same storage, in eval mode. Switching between widths is free.

        Tensors of several segments cannot share storage: each call brings them up to date.

        Args:
            width: A number, one for each stage, or a `Width`.

        Returns:
            The same module each time, until the width is calibrated again or the weights change.
        """
        signature = self.signature(width)
        statistics = self._trusted_statistics(signature)
        if not statistics:  # else that has looked already
            self._watch.look()
        if self._addresses != self._watch.addresses:  # the views lie on memory that is no longer ours
            self._views, self._addresses = {}, self._watch.addresses
        if signature not in self._views:
            view = self._plain(width, statistics, torch.detach).requires_grad_(False)
            full, segments = tensors_of(self.full), self.family.segments
            pairs = ((tensor, full[name], segments(name)) for name, tensor in tensors_of(view).items())
            self._views[signature] = view, [SegmentCopy(*pair) for pair in pairs if pair[2]]
        view, copies = self._views[signature]
        for copy in copies:
            copy.renew()
        return view.eval() if view.training else view

    def carve(self, width: AnyWidth) -> nn.Module:
        """The plain network of that width with a copy of its weights, in eval mode, ready to be trained or exported.

        Args:
            width: A number, one for each stage, or a `Width`.

        Returns:
            A new module with nothing of us3l in it.
        """
        return self._plain(width, self._trusted_statistics(self.signature(width)), own_copy).eval()

    def _plain(self, width: AnyWidth, statistics: Statistics, take: Callable[[Tensor], Tensor]) -> nn.Module:
        if self.signature(width) not in self.statistics and batch_norms(self.full):
            warnings.warn(
                f"width {width} is not calibrated: batch norm will use the statistics of each batch it is given. "
                "Call us3l.calibrate(net, images) first.",
                stacklevel=3,
            )
        return self._build(width, statistics, take)

    def _build(self, width: AnyWidth, statistics: Statistics, take: Callable[[Tensor], Tensor]) -> nn.Module:
        """The plain network of that width, on what `take` makes of each shared tensor."""
        module = self._build_skeleton(width)
        check_statistics(statistics, module, self.check(width))
        if not statistics:
            forget_statistics(module)
        shared = self._slices(width) | self._like_weights(statistics)
        assign(module, {name: take(tensor) for name, tensor in shared.items()})
        return module

    # Skeletons: shapes without memory, built once for each distinct network

    def skeleton(self, width: AnyWidth, tracking: bool = False) -> nn.Module:
        """The plain network of that width without memory, for questions about shapes and costs.

        Args:
            width: A number, one for each stage, or a `Width`.
            tracking: Whether its batch norms have running statistics.
        """
        key = self.signature(width), tracking
        if key not in self._skeletons:
            skeleton = self._build_skeleton(width)
            check_nested(skeleton, self.full, self.check(width), self.family.segments)
            self._skeletons[key] = skeleton if tracking else forget_statistics(skeleton)
            if not self.check(width).plain:
                self._passing.append(key)
                if len(self._passing) > PASSING:
                    self._skeletons.pop(self._passing.pop(0), None)
        return self._skeletons[key]

    def blank(self, width: AnyWidth) -> nn.Module:
        """A plain network of that width with weights of its own, as its family draws them.

        Args:
            width: A number, one for each stage, or a `Width`.
        """
        return self._called(self.check(width).for_family())

    def _called(self, width: Any) -> nn.Module:
        """What the family builds; a family may be anybody's code."""
        try:
            return self.family(width)
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"the family cannot build the network of width {width} ({told(error)})") from error

    def _build_skeleton(self, width: AnyWidth) -> nn.Module:
        try:
            with torch.device("meta"), WithoutFilling():
                return self.blank(width)
        except UserError as error:
            if not isinstance(reason := error.__cause__, NotImplementedError | RuntimeError):
                raise
            raise UserError(
                f"the family cannot build width {width} without memory ({reason}): while building, it must not look at "
                "the values of tensors"
            ) from None

    # Calibration

    def calibrated(self, width: AnyWidth) -> bool:
        """Whether the network of that width has batch-norm statistics of the present weights, or needs none.

        Args:
            width: A number, one for each stage, or a `Width`.
        """
        kept = self.statistics.get(self.signature(width))
        return kept.weights == self.digest if kept else not batch_norms(self.full)

    def set_statistics(self, width: AnyWidth, statistics: Statistics | None, weights: str | None = None) -> None:
        """Keep the batch-norm statistics of that width, or drop them.

        Args:
            width: A number, one for each stage, or a `Width`.
            statistics: By their names in the network's state dict; None drops those there are.
            weights: The digest of the weights that they belong to (default: of the present ones).
        """
        signature = self.signature(width)
        self.statistics.pop(signature, None)
        self._views.pop(signature, None)
        if statistics is not None:
            self.statistics[signature] = Calibration(self.check(width), statistics, weights or self.digest)

    def forget_calibration(self) -> None:
        """Drop all statistics: batch norm then uses those of each batch."""
        self.statistics.clear()
        self._views.clear()

    def _trusted_statistics(self, signature: Hashable) -> Statistics:
        """Those of that network, none if it is not calibrated; an error if they belong to other weights."""
        kept = self.statistics.get(signature)
        if kept is None:
            return {}
        if kept.weights != self.digest:
            raise UserError(
                f"the weights have changed since width {kept.width} was calibrated: us3l.calibrate(net, images) again, "
                "or net.forget_calibration()"
            )
        return kept.statistics

    def _like_weights(self, statistics: Statistics) -> Statistics:
        """On the device and of the type of the weights."""
        weight = next(self.full.parameters())
        return {name: tensor.to(weight) for name, tensor in statistics.items()}

    # State

    def _forget_tensors(self) -> None:
        """What is derived from the tensors and where they lie."""
        self._skeletons, self._views, self._addresses, self._digest, self._passing = {}, {}, [], None, []
        self.__dict__.pop("_watch", None)

    @cached_property
    def _watch(self) -> Watch:
        return Watch(self)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Slimmable:
        kind = next(self.full.parameters()).dtype
        fresh = [key for key, kept in self.statistics.items() if kept.weights == self.digest]
        super()._apply(fn, recurse)
        if next(self.full.parameters()).dtype != kind:  # the same weights, in other words
            for key in fresh:
                self.statistics[key] = self.statistics[key]._replace(weights=self.digest)
        return self

    def __getstate__(self) -> dict[str, Any]:
        hidden = ("_skeletons", "_passing", "_views", "_addresses", "_digest", "_watch")
        return {name: value for name, value in self.__dict__.items() if name not in hidden}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._forget_tensors()

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination |= to_state(self.statistics.values(), prefix)

    def _load_from_state_dict(
        self,
        state: dict[str, Any],
        prefix: str,
        metadata: Any,
        strict: bool,
        missing: Any,
        unexpected: Any,
        errors: list[str],
    ) -> None:
        calibrations = take_from_state(state, prefix, errors)
        super()._load_from_state_dict(state, prefix, metadata, strict, missing, unexpected, errors)
        if calibrations:
            self.forget_calibration()
        for width, statistics, weights in calibrations:
            try:
                self.set_statistics(width, statistics, weights)
            except UserError as error:
                errors.append(f"the statistics of width {width} do not fit: {error}")

    def load_plain(self, state: Mapping[str, Tensor]) -> None:
        """Take the weights of a plain network of width 1: the state dict of a torchvision or timm model.

        Batch-norm statistics in it become the calibration of width 1; all earlier calibration is dropped.

        Args:
            state: Tensors by name; all of them must fit.
        """
        from us3l.storage import load_plain

        load_plain(self, state)

    def save(self, path: str | Path, overwrite: bool = False) -> None:
        """Write weights, statistics and description into a folder; see `us3l.load`.

        Args:
            path: The folder, which is made if need be.
            overwrite: Whether a model that is there already may be replaced.
        """
        from us3l.storage import save

        save(self, path, overwrite)
