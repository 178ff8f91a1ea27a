"""Switchable batch norm (S-Net): each of a few fixed widths has norm weights and biases of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from us3l.system.errors import UserError
from us3l.tensors import batch_norms
from us3l.width import Width


class SwitchableNorms(nn.ModuleList):
    """The norms' weights and biases of every width but 1, whose norms are the full network's.

    Without widths there are none, and nothing is switched.
    """

    def __init__(self, widths: Sequence[float] | None = None) -> None:
        super().__init__()
        self.widths = tuple(sorted(map(float, widths))) if widths is not None else ()
        self.names: dict[Width, list[str]] = {}
        if widths is not None and 1.0 not in self.widths:
            raise UserError(f"the switchable widths {self.widths} must include 1")

    def check(self, width: Width) -> None:
        """Refuse other widths than the switchable ones, if there are any."""
        if self.widths and width not in self.widths:
            known = ", ".join(f"{known:g}" for known in self.widths)
            raise UserError(f"width {width} is none of this network's switchable widths, {known}")

    def fill(self, skeleton: Callable[[Width], nn.Module], leading: Callable[[Width], dict[str, Tensor]]) -> None:
        """Give each width copies of the leading blocks of the full network's norms."""
        for width in map(Width, self.widths[:-1]):
            norms = batch_norms(skeleton(width))
            self.names[width] = [f"{norm}.{kind}" for norm in norms for kind, _ in norms[norm].named_parameters()]
            blocks = leading(width)
            self.append(nn.ParameterList(blocks[name].detach().clone() for name in self.names[width]))

    @torch.no_grad()
    def reset(self, leading: Callable[[Width], dict[str, Tensor]]) -> None:
        """Start again from the full network's norms."""
        for width in self.names:
            blocks = leading(width)
            for name, tensor in self.of(width).items():
                tensor.copy_(blocks[name])

    def of(self, width: Width) -> dict[str, Tensor]:
        """Return those of one width by their names in its network; none where they are the full network's."""
        if width not in self.names:
            return {}
        return dict(zip(self.names[width], self[self.widths.index(width)].parameters(), strict=True))

    def all(self) -> dict[str, Tensor]:
        """Return those of all widths, by names that begin with the width."""
        return {f"{width}/{name}": tensor for width in self.names for name, tensor in self.of(width).items()}
