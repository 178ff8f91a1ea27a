"""Skeletons: what a family builds at each width, as shapes without memory."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from us3l.families.family import Family
from us3l.system.errors import UserError, brief
from us3l.tensors import WithoutFilling, forget_statistics, tensors_of
from us3l.width import Width

PASSING = 32  # sub-networks whose skeletons are kept: there are any number of them
SIGNATURES = 10_000  # that are remembered


class Skeletons:
    """The networks of a family without memory, each built once.

    Args:
        family: Builds the networks.
        full: Its network at width 1, in which all others must be nested.
    """

    def __init__(self, family: Family, full: nn.Module) -> None:
        self.family = family
        self.whole = {name: tensor.shape for name, tensor in tensors_of(full).items()}
        self._signatures: dict[Width, Hashable] = {}
        self._built: dict[tuple[Hashable, bool], nn.Module] = {}
        self._passing: list[tuple[Hashable, bool]] = []  # the keys of sub-networks, the oldest first

    def __getstate__(self) -> dict[str, Any]:
        """Without what can be built again."""
        return self.__dict__ | {"_signatures": {}, "_built": {}, "_passing": []}

    def signature(self, width: Width) -> Hashable:
        """Return a value that is equal for widths that mean the same network."""
        signature = self._signatures.get(width)
        if signature is None:
            signature = self.family.signature(width.for_family())
            if signature is None:
                signature = tuple((name, tensor.shape) for name, tensor in tensors_of(self.build(width)).items())
            if len(self._signatures) >= SIGNATURES:
                self._signatures.clear()
            self._signatures[width] = signature
        return signature

    def __call__(self, width: Width, statistics: bool = True) -> nn.Module:
        """Return the network of a width, which nobody may change.

        Args:
            width: A width that the family has.
            statistics: Whether its batch norms have running statistics, as those of finished networks do.

        Raises:
            UserError: It is not nested in the full network.
        """
        key = self.signature(width), statistics
        network = self._built.get(key)
        if network is None:
            network = self.build(width)
            check_nested(network, self.whole, width, self.family.segments)
            self._built[key] = network if statistics else forget_statistics(network)
            if not width.plain:
                self._passing.append(key)
                if len(self._passing) > PASSING:
                    self._built.pop(self._passing.pop(0), None)
        return network

    def build(self, width: Width) -> nn.Module:
        """Return a new network of a width without memory."""
        try:
            with torch.device("meta"), WithoutFilling():
                return blank(self.family, width)
        except UserError as error:
            if not isinstance(reason := error.__cause__, NotImplementedError | RuntimeError):
                raise
            raise UserError(
                f"the family cannot build width {width} without memory ({reason}): while building, it must not look at "
                "the values of tensors"
            ) from None


def blank(family: Family, width: Width) -> nn.Module:
    """Return a new network of a width with the weights that its family draws. A family may be anybody's code."""
    try:
        return family(width.for_family())
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"the family cannot build the network of width {width} ({brief(error)})") from error


def check_nested(
    part: nn.Module, whole: Mapping[str, torch.Size], width: Width, segments: Callable[[str], Sequence[int]]
) -> None:
    """Raise if a tensor of a network is not a leading block of the full network's tensor of the same name."""
    parts = tensors_of(part)
    if missing := [name for name in whole if name not in parts and width.depths is None]:
        raise UserError(
            f"the family is not nested: {missing[0]!r} exists at width 1 but not at width {width}; "
            "layers must not come and go with the width"
        )
    for name, tensor in parts.items():
        if name not in whole:
            raise UserError(f"the family is not nested: {name!r} exists at width {width} but not at width 1")
        small, large = tuple(tensor.shape), tuple(whole[name])
        if len(small) != len(large) or any(s > t for s, t in zip(small, large, strict=True)):
            raise UserError(
                f"the family is not nested: {name!r} has shape {small} at width {width}, "
                f"which is not a leading block of its shape {large} at width 1"
            )
        for axis, count in enumerate(segments(name)):
            if axis >= len(small) or small[axis] % count or large[axis] % count:
                raise UserError(
                    f"the family's segments do not fit: {name!r} has shape {small} at width {width} and {large} "
                    f"at width 1, which {count} segments on axis {axis} do not divide"
                )
