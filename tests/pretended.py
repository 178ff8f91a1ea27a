"""A pretended device: what a GPU would refuse or wait for is an error here, on a machine that has none.

Its tensors say that they are on "meta", where autograd works without a device, but they have values: each holds a
tensor on the CPU. Within `PretendedDevice` every operation is looked at. Tensors of the device and of the CPU do not
mix, but for single numbers; and within `no_waits` nothing may ask the device for a value, nor copy to it without
saying that it need not wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import wraps
from types import SimpleNamespace
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = torch.device("meta")
CPU = torch.device("cpu")
aten = torch.ops.aten
WAITS = {
    aten._local_scalar_dense,
    aten.equal,
    aten.is_nonzero,
    aten.masked_select,
    aten.nonzero,
    aten._unique2,
    aten.unique_dim,
    aten.unique_consecutive,
    aten.bincount,
    aten._linalg_check_errors,
}
INDEXING = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_}
COPIES = {aten._to_copy, aten.copy_, aten._copy_from}
F = TypeVar("F", bound=Callable[..., Any])


class MixedDevicesError(RuntimeError):
    pass


class WaitError(RuntimeError):
    pass


class Pretended(torch.Tensor):
    """A tensor on the pretended device."""

    inner: Tensor
    device_mode: PretendedDevice | None = None  # the one that is on

    @staticmethod
    def __new__(cls, inner: Tensor) -> Pretended:
        made = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, device=DEVICE, layout=inner.layout
        )
        made.inner = inner
        return made

    def __init__(self, inner: Tensor) -> None:
        pass

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, **_: Any) -> Any:
        raise MixedDevicesError("numpy knows tensors of the CPU only")

    def __repr__(self) -> str:  # type: ignore[override]
        if Pretended.device_mode is not None and Pretended.device_mode.strict:
            raise WaitError("a tensor that is shown is waited for")
        return f"Pretended({tuple(self.shape)})"

    __str__ = __repr__

    def __format__(self, _: str) -> str:
        return str(self)

    @classmethod
    def __torch_dispatch__(cls, function: Any, _: Any, __: Any = (), ___: Any = None) -> Any:
        raise AssertionError(f"{function} ran outside of PretendedDevice")


class PretendedDevice(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.strict = False

    def __enter__(self) -> Self:
        Pretended.device_mode = self
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        Pretended.device_mode = None
        super().__exit__(*error)

    @contextmanager
    def no_waits(self, strict: bool = True) -> Iterator[None]:
        before, self.strict = self.strict, strict
        try:
            yield
        finally:
            self.strict = before

    def patient(self, function: F) -> F:
        """The function with leave to wait, also within `no_waits`."""

        @wraps(function)
        def waiting(*arguments: Any, **settings: Any) -> Any:
            with self.no_waits(strict=False):
                return function(*arguments, **settings)

        return waiting  # type: ignore[return-value]

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        flat = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, Tensor)]
        ours = [value for value in flat if isinstance(value, Pretended)]
        target = kwargs.get("device")
        placed = target is not None and torch.device(target).type == DEVICE.type
        self.look(function, args, kwargs, flat, ours, placed)
        if placed:
            kwargs["device"] = CPU
        wrappers = {id(value.inner): value for value in ours}
        args, kwargs = tree_map(lambda v: v.inner if isinstance(v, Pretended) else v, (args, kwargs))
        kwargs.pop("pin_memory", None)
        result = function(*args, **kwargs)
        on_device = placed or (bool(ours) and target is None and function.overloadpacket not in WAITS)
        if function.overloadpacket is aten.copy_:
            on_device = id(args[0]) in wrappers

        def wrap(value: Any) -> Any:
            if not isinstance(value, Tensor) or isinstance(value, Pretended):
                return value
            if id(value) in wrappers:
                return wrappers[id(value)]
            if not on_device:
                return value
            return Pretended(value.clone() if any(value is plain for plain in flat) else value)

        return tree_map(wrap, result)

    def look(
        self, function: Any, args: Any, kwargs: Any, flat: list[Tensor], ours: list[Pretended], placed: bool
    ) -> None:
        """Raise what a device would object to."""
        operation, target = function.overloadpacket, kwargs.get("device")
        if operation in COPIES:
            source = args[1] if operation is aten.copy_ else args[0]
            to_device = (
                isinstance(args[0], Pretended) if operation is aten.copy_ else (placed or (target is None and ours))
            )
            leaves = isinstance(source, Pretended) and not to_device
            enters = not isinstance(source, Pretended) and to_device
            waits = not kwargs.get("non_blocking", args[2] if operation is aten.copy_ and len(args) > 2 else False)
            if self.strict and (leaves or (enters and waits and source.numel() > 0)):
                raise WaitError(f"{function} copies {'from' if leaves else 'to'} the device and waits for it")
            return
        if not ours:
            return
        indexes = operation in INDEXING
        strangers = [value for value in flat if not isinstance(value, Pretended) and value.ndim > 0]
        if strangers and not indexes:
            shapes = [tuple(value.shape) for value in strangers]
            raise MixedDevicesError(f"{function} mixes devices: {shapes} on the CPU")
        # Indices on the CPU are copied, masks counted.
        masks = indexes and any(getattr(value, "dtype", None) == torch.bool for value in tree_flatten(args[1])[0])
        if self.strict and (operation in WAITS or masks or strangers):
            raise WaitError(f"{function} waits for the device")


def move(module: nn.Module) -> nn.Module:
    """Put a module's parameters and buffers onto the pretended device."""
    known: dict[int, Any] = {}
    for part in module.modules():
        for name, parameter in list(part._parameters.items()):
            if parameter is not None and not isinstance(parameter, Pretended):
                if id(parameter) not in known:
                    known[id(parameter)] = nn.Parameter(Pretended(parameter.detach()), parameter.requires_grad)
                part._parameters[name] = known[id(parameter)]
        for name, buffer in list(part._buffers.items()):
            if buffer is not None and not isinstance(buffer, Pretended):
                part._buffers[name] = Pretended(buffer)
    return module


def fabric() -> Any:
    """What a trainer needs of Lightning Fabric, on the pretended device."""
    return SimpleNamespace(
        device=DEVICE,
        world_size=1,
        global_rank=0,
        is_global_zero=True,
        setup_module=move,
        setup_optimizers=lambda optimiser: optimiser,
        backward=lambda loss: loss.backward(),
        no_backward_sync=lambda *_, **__: nullcontext(),
        all_reduce=lambda value, **_: value,
        broadcast=lambda value: value,
        strategy=SimpleNamespace(precision=SimpleNamespace(state_dict=dict)),
    )
