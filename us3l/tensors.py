"""Tensors of plain networks: taking the leading blocks of a wide network's, and putting them into a narrow one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from us3l.system.errors import UserError
from us3l.width import Width

KINDS = ("running_mean", "running_var")  # of statistics of a batch norm
SAMPLED = 4  # tensors, and numbers of each
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by their bytes
VERSION = attrgetter("_version")


def own_copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def leading(tensor: Tensor, shape: torch.Size, segments: Sequence[int] = (), copy: bool = False) -> Tensor:
    """Return the leading block of that shape; on axes of several segments, the leading blocks of each, side by side.

    It is a view, unless there are several segments, or a `copy`, through which training is faster: layers get a dense
    tensor, and its gradient is written into that of the whole tensor at once instead of axis by axis.

    >>> leading(torch.arange(6), torch.Size([2])), leading(torch.arange(6), torch.Size([4]), segments=[2])
    (tensor([0, 1]), tensor([0, 1, 3, 4]))
    """
    if tensor.shape == shape:
        return tensor
    pieces, sizes = tensor, list(shape)
    for axis, parts in reversed([*enumerate(segments)]):
        if parts > 1:
            pieces = pieces.unflatten(axis, (parts, -1))
            sizes[axis : axis + 1] = [parts, shape[axis] // parts]
    if copy:
        missing = zip(reversed(sizes), reversed(pieces.shape), strict=True)
        block = F.pad(pieces, [pad for small, large in missing for pad in (0, small - large)])
    else:
        block = pieces[tuple(slice(size) for size in sizes)]
    return block.reshape(shape)


@dataclass
class SegmentCopy:
    """What a narrow network has of a wide one's tensor of several segments: a copy, because no view is possible."""

    target: Tensor
    source: Tensor
    segments: Sequence[int]
    version: int = -1

    def renew(self) -> None:
        """Follow the source, if it was changed since."""
        if self.version != self.source._version and self.target.shape != self.source.shape:
            self.target.copy_(leading(self.source, self.target.shape, self.segments).detach())
        self.version = self.source._version


class WithoutFilling(TorchFunctionMode):
    """Where tensors have no memory, drawing their first values is skipped: it took most of the time of building."""

    FILLS = frozenset(
        getattr(Tensor, name)
        for name in ("normal_", "uniform_", "fill_", "zero_", "copy_", "mul_", "add_", "clamp_", "erfinv_")
    )

    def __torch_function__(
        self, func: Any, _: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in self.FILLS or getattr(func, "__module__", "") == nn.init.__name__:
            target = args[0] if args else kwargs["tensor"]
            if target.is_meta:
                return target
        return func(*args, **kwargs)


class HollowNorms(TorchFunctionMode):
    """Where tensors have no memory, a batch norm gives a shape at once: torch spells it out, in a millisecond each.

    `numbers` counts what went through them. What does not fit is left to torch, which may refuse it.
    """

    numbers = 0

    def __torch_function__(
        self, func: Any, _: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.batch_norm and args and args[0].is_meta and args[0].ndim > 1:
            x, *per_channel = args[:5]
            channels = x.shape[1]
            if x.numel() > channels and all(tensor is None or tensor.shape == (channels,) for tensor in per_channel):
                self.numbers += x.numel()
                return torch.empty_like(x)
        return func(*args, **(kwargs or {}))


def digest(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of names, types, shapes and values; devices and memory formats make no difference."""
    sha256 = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        sha256.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        sha256.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return sha256.hexdigest()


class Watch:
    """Notices changes of a module's tensors without looking at all their values.

    It sees where tensors lie, and how often each was changed in place: by most optimisers, by `load_state_dict`. Fused
    optimisers and edits of `.data` do not count as changes: those are seen in a few values of a few tensors. What it
    cannot see is an edit of `.data` beside these values, such as one filter's: whoever needs to be certain, as
    `us3l.calibrate` and `net.save` do, computes the digest in any case.
    """

    def __init__(self, module: nn.Module) -> None:
        self.slots = [slot.values() for part in module.modules() for slot in (part._parameters, part._buffers) if slot]
        self.addresses: list[int] = []
        self.sampled: list[Tensor] = []
        self._digest: tuple[object, str] | None = None

    def look(self) -> tuple[list[int], list[int], list[int]]:
        """Where the tensors lie, how often each was changed there, and the sample's bits: equal while nothing changes.

        Each `Slimmable.at` does it, so it is written for speed; it waits for the device once.
        """
        tensors = [tensor for tensor in chain.from_iterable(self.slots) if tensor is not None]
        addresses = list(map(Tensor.data_ptr, tensors))
        if addresses != self.addresses:
            self.addresses, self.sampled = addresses, sample_bits(tensors)
        try:
            versions = list(map(VERSION, tensors))
        except RuntimeError:  # tensors made in inference mode count no changes
            versions = [0 if tensor.is_inference() else tensor._version for tensor in tensors]
        return addresses, versions, torch.cat(self.sampled).tolist() if self.sampled else []

    def digest(self, weights: Callable[[], Mapping[str, Tensor]], certain: bool = False) -> str:
        """Return the digest of the weights, computed again if they have changed or if it must be certain."""
        seen = self.look()
        if certain or self._digest is None or self._digest[0] != seen:
            self._digest = seen, digest(weights())
        return self._digest[1]


def sample_bits(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the first values of a few tensors of one device and one type, as whole numbers of the same bits."""
    some = [t.detach() for t in tensors if t.is_floating_point() and t.numel() and not t.is_meta]
    some = [t for t in some if (t.device, t.dtype) == (some[0].device, some[0].dtype)]
    starts = [
        t.as_strided((min(SAMPLED, t.numel()),), (1,), t.storage_offset())
        for t in some[:: max(1, len(some) // SAMPLED)]
    ]
    return [values.view(BITS[values.element_size()]) for values in starts]


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers by name, without the batch-norm statistics, which are not shared among widths."""
    statistics = {
        f"{name}.{buffer}".lstrip(".") for name, norm in batch_norms(module).items() for buffer in norm._buffers
    }
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    return {name: tensor for name, tensor in tensors.items() if name not in statistics}


def batch_norms(module: nn.Module) -> dict[str, _BatchNorm]:
    return {name: norm for name, norm in module.named_modules() if isinstance(norm, _BatchNorm)}


def forget_statistics(module: nn.Module) -> nn.Module:
    """Make batch norm use the statistics of each batch."""
    for norm in batch_norms(module).values():
        norm.track_running_stats = False
        norm.running_mean = norm.running_var = norm.num_batches_tracked = None
    return module


def check_statistics(statistics: Mapping[str, Tensor], network: nn.Module, width: Width) -> None:
    """Raise if they are not those of a network's batch norms; no statistics at all will do."""
    norms = {f"{name}.{kind}": norm for name, norm in batch_norms(network).items() for kind in KINDS}
    for name in statistics.keys() | norms.keys() if statistics else ():
        shape = tuple(statistics[name].shape) if name in statistics else None
        expected = (norms[name].num_features,) if name in norms else None
        if shape != expected and not (shape is None and not norms[name].track_running_stats):
            raise UserError(
                f"the statistics of width {width} do not fit its network: {name} is {shape}, not {expected}"
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
