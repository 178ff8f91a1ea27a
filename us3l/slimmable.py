"""The idea: the network at width w owns the leading block of every tensor of the network at width 1.

A *family* is a function `width -> nn.Module` that builds a plain network; `us3l.families.family` says what else it may
tell about its networks.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from us3l.calibration import Calibration, Calibrations, Statistics, take_from_state
from us3l.families.family import Family, as_family
from us3l.skeletons import Skeletons, blank
from us3l.switchable import SwitchableNorms
from us3l.system.errors import UserError
from us3l.tensors import (
    SegmentCopy,
    Watch,
    assign,
    batch_norms,
    check_statistics,
    forget_statistics,
    leading,
    own_copy,
    tensors_of,
)
from us3l.width import FULL, AnyWidth, Width, distinct_widths, warn_if_slow

COARSE = 1e-3  # how near to each other widths are tried where each must be built


class View(NamedTuple):
    """A plain network on the shared storage, what of it had to be copied, and the calibration that it has."""

    network: nn.Module
    copies: list[SegmentCopy]
    calibration: Calibration | None


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

    _views: dict[Hashable, View]
    """What `at` gave, by signature."""
    _addresses: list[int]
    """Where the weights lie that the views lie on."""

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
        full = blank(self.family, FULL)
        if not isinstance(full, nn.Module) or not any(True for _ in full.parameters()):
            raise UserError(f"the family must build networks with parameters, but family(1.0) is {type(full).__name__}")
        self.full = forget_statistics(full)
        self.norms = norms
        self.skeletons = Skeletons(self.family, full)
        self.calibrations = Calibrations()
        self.metadata: dict[str, Any] = {}  # plain values that travel with a saved model, such as its preprocessing
        if len({self.signature(width) for width in self.switchable}) < len(self.switchable):
            raise UserError(f"some of the switchable widths {self.switchable} mean the same network")
        norms.fill(self.skeleton, self.shared_slices)
        self._views, self._addresses = {}, []

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
            if not self.min_width <= number <= 1:
                raise UserError(f"width {number:g} is outside the range of this network, {self.min_width:g} to 1")
        if not checked.plain:
            checked = check_stages(self.family, checked)
        self.norms.check(checked)
        return checked

    def signature(self, width: AnyWidth) -> Hashable:
        """Return a value that is equal for widths that mean the same network.

        Args:
            width: A number, one for each stage, or a `Width`.
        """
        return self.skeletons.signature(self.check(width))

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
        """Return those of some usual widths that this network has, widest first, and its narrowest in any case.

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
        """Return the member of `widths` that means the same network: channel counts are rounded, so many widths do.

        Args:
            width: Any width in range.

        Returns:
            A width, for instance 0.4 for 0.37; a sub-network whose stages differ stays as it is.
        """
        checked = self.check(width)
        return self._canonical.get(self.skeletons.signature(checked), checked)

    # Running a network on the shared weights

    def forward(self, images: Tensor, width: AnyWidth = 1.0) -> Tensor:
        """Return outputs of the network of that width, on the shared weights; gradients flow into them.

        Args:
            images: A batch, preprocessed.
            width: A number, one for each stage, or a `Width`.
        """
        return self.bind(width)(images)

    def bind(self, width: AnyWidth) -> Callable[[Tensor], Tensor]:
        """Return the network of that width as a function; it slices the weights once for any number of batches.

        Where gradients are recorded, it has the weights of this moment: bind again after each update.

        Args:
            width: A number, one for each stage, or a `Width`.

        Returns:
            A function of a batch of images. In eval mode, it uses the statistics of that width, if it is calibrated.
        """
        width = self.check(width)
        statistics = {} if self.training else self.statistics(width)
        if not statistics and self.skeletons.signature(width) == self.skeletons.signature(FULL):
            return self.full
        skeleton = self.skeletons(width, bool(statistics))
        if skeleton.training != self.training:
            skeleton.train(self.training)
        check_statistics(statistics, skeleton, width)
        tensors = self.slices(width, copy=torch.is_grad_enabled()) | self._like_weights(statistics)
        return lambda images: functional_call(skeleton, tensors, (images,))

    def slices(self, width: AnyWidth, copy: bool = False) -> dict[str, Tensor]:
        """Return the tensors of that network: `shared_slices`, but for switchable norms, which are its own.

        Args:
            width: A number, one for each stage, or a `Width`.
            copy: Take copies instead of views, through which training is faster; gradients flow through both.
        """
        return self.shared_slices(width, copy) | self.norms.of(self.check(width))

    def shared_slices(self, width: AnyWidth, copy: bool = False) -> dict[str, Tensor]:
        """Return the leading block of each of the full network's tensors that the network of that width has.

        Args:
            width: A number, one for each stage, or a `Width`.
            copy: Take copies instead of views.
        """
        full = tensors_of(self.full)
        return {
            name: leading(full[name], tensor.shape, self.family.segments(name), copy)
            for name, tensor in tensors_of(self.skeletons(self.check(width), statistics=False)).items()
        }

    def weights(self) -> dict[str, Tensor]:
        """Return all tensors that are learned or constant, by name; those of one switchable width begin with it."""
        return tensors_of(self.full) | self.norms.all()

    # Plain networks

    def at(self, width: AnyWidth) -> nn.Module:
        """Return the plain network of that width on the same storage, in eval mode. Switching between widths is free.

        Tensors of several segments cannot share storage: each call brings them up to date.

        Args:
            width: A number, one for each stage, or a `Width`.

        Returns:
            The same module each time, until the width is calibrated again or the weights change.
        """
        width = self.check(width)
        signature = self.skeletons.signature(width)
        calibration = self._trusted(signature)
        if calibration is None:  # else that has looked already
            self.watch.look()
        if self._addresses != self.watch.addresses:  # the views lie on memory that is no longer ours
            self._views, self._addresses = {}, self.watch.addresses
        view = self._views.get(signature)
        if view is None or view.calibration is not calibration:
            self._warn_uncalibrated(width, calibration)
            network = self.build(width, calibration.statistics if calibration else {}).requires_grad_(False)
            full, segments = tensors_of(self.full), self.family.segments
            pairs = ((tensor, full[name], segments(name)) for name, tensor in tensors_of(network).items())
            view = View(network, [SegmentCopy(*pair) for pair in pairs if pair[2]], calibration)
            self._views[signature] = view
        for copy in view.copies:
            copy.renew()
        return view.network.eval() if view.network.training else view.network

    def carve(self, width: AnyWidth) -> nn.Module:
        """Return the plain network of that width with a copy of its weights, ready to be trained or exported.

        Args:
            width: A number, one for each stage, or a `Width`.

        Returns:
            A new module in eval mode with nothing of us3l in it.
        """
        width = self.check(width)
        calibration = self._trusted(self.skeletons.signature(width))
        self._warn_uncalibrated(width, calibration)
        return self.build(width, calibration.statistics if calibration else {}, own_copy)

    def build(self, width: Width, statistics: Statistics, take: Callable[[Tensor], Tensor] = torch.detach) -> nn.Module:
        """Return a new plain network of that width in eval mode, on what `take` makes of each shared tensor.

        Args:
            width: A width of this network.
            statistics: Of its batch norms; without any, they use those of each batch.
            take: Makes a tensor of the network from a shared one (default: it shares its storage).
        """
        network = self.skeletons.build(width)
        check_statistics(statistics, network, width)
        if not statistics:
            forget_statistics(network)
        shared = self.slices(width) | self._like_weights(statistics)
        assign(network, {name: take(tensor) for name, tensor in shared.items()})
        return network.eval()

    def skeleton(self, width: AnyWidth) -> nn.Module:
        """Return the plain network of that width without memory, for questions about shapes and costs.

        Args:
            width: A number, one for each stage, or a `Width`.
        """
        return self.skeletons(self.check(width))

    def blank(self, width: AnyWidth) -> nn.Module:
        """Return a plain network of that width with weights of its own, as its family draws them.

        Args:
            width: A number, one for each stage, or a `Width`.
        """
        return blank(self.family, self.check(width))

    def _warn_uncalibrated(self, width: Width, calibration: Calibration | None) -> None:
        if calibration is None and batch_norms(self.full):
            warnings.warn(
                f"width {width} is not calibrated: batch norm will use the statistics of each batch it is given. "
                "Call us3l.calibrate(net, images) first.",
                stacklevel=3,
            )

    # Calibration

    @cached_property
    def watch(self) -> Watch:
        """Notices when the weights change."""
        return Watch(self)

    @property
    def digest(self) -> str:
        """The SHA-256 of the weights. It is computed once after each change of them that `watch` notices."""
        return self.watch.digest(self.weights)

    def certain_digest(self) -> str:
        """Return the same, computed in any case: see `Watch` for changes that go unnoticed."""
        return self.watch.digest(self.weights, certain=True)

    def calibrated(self, width: AnyWidth) -> bool:
        """Return whether the network of that width has batch-norm statistics of the present weights, or needs none.

        Args:
            width: A number, one for each stage, or a `Width`.
        """
        kept = self.calibrations.get(self.signature(width))
        return kept.weights == self.digest if kept else not batch_norms(self.full)

    def statistics(self, width: AnyWidth) -> Statistics:
        """Return the batch-norm statistics of that width, none if it is not calibrated.

        Args:
            width: A number, one for each stage, or a `Width`.

        Raises:
            UserError: They belong to other weights.
        """
        kept = self._trusted(self.signature(width))
        return kept.statistics if kept else {}

    def _trusted(self, signature: Hashable) -> Calibration | None:
        kept = self.calibrations.get(signature)
        if kept is not None and kept.weights != self.digest:
            raise UserError(
                f"the weights have changed since width {kept.width} was calibrated: us3l.calibrate(net, images) again, "
                "or net.forget_calibration()"
            )
        return kept

    def set_statistics(self, width: AnyWidth, statistics: Statistics | None, weights: str | None = None) -> None:
        """Keep the batch-norm statistics of that width, or drop them.

        Args:
            width: A number, one for each stage, or a `Width`.
            statistics: By their names in the network's state dict; None drops those there are.
            weights: The digest of the weights that they belong to (default: of the present ones).
        """
        width = self.check(width)
        kept = None if statistics is None else Calibration(width, statistics, weights or self.digest)
        self.calibrations.keep(self.skeletons.signature(width), kept)

    def forget_calibration(self) -> None:
        """Drop all statistics: batch norm then uses those of each batch."""
        self.calibrations.clear()

    def _like_weights(self, statistics: Statistics) -> Statistics:
        """On the device and of the type of the weights."""
        weight = next(self.full.parameters())
        return {name: tensor.to(weight) for name, tensor in statistics.items()}

    # State

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Slimmable:
        kind = next(self.full.parameters()).dtype
        before = self.digest if len(self.calibrations) else ""
        super()._apply(fn, recurse)
        if before and next(self.full.parameters()).dtype != kind:  # the same weights, in other words
            self.calibrations.rename_weights(before, self.digest)
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Without what is derived from the tensors and where they lie."""
        return {name: value for name, value in self.__dict__.items() if name not in ("watch", "_views", "_addresses")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._views, self._addresses = {}, []

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination |= self.calibrations.to_state(prefix)

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


def check_stages(family: Family, width: Width) -> Width:
    """Return a width that is not plain, by a simpler name if all its blocks are there.

    Raises:
        UserError: The family does not have such stages or blocks.
    """
    widths, depths, blocks = width.widths, width.depths, family.blocks
    stages = family.stages or (len(blocks) if blocks else None)
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
