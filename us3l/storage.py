"""A model on disk: `weights.safetensors`, `statistics.safetensors` and `model.json`. Reading it never runs code."""

from __future__ import annotations

import errno
import json
import os
import pickle
import re
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import safetensors
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from us3l.calibration import Statistics
from us3l.description import NAME, holds_model, read_description, write_description
from us3l.families import create
from us3l.families.family import Family
from us3l.families.user_families import current_family
from us3l.slimmable import Slimmable
from us3l.system.errors import UserError
from us3l.system.files import check_regular, replacing
from us3l.tensors import KINDS, WithoutFilling, batch_norms, digest, tensors_of
from us3l.width import FULL, Width

NAMED = 4  # tensors that an error names
MOST_VALUES = 1_000_000  # of a file that torch.save wrote, a value that it holds in several places counted in each
MOST_LAYERS, MOST_SWITCHABLE = 1000, 100
WEIGHTS = "weights.sha256"  # in the metadata of statistics: the digest of the weights that they belong to


def save(net: Slimmable, path: str | Path, overwrite: bool = False) -> None:
    """Write a model's folder. `model.json` comes last: a folder that has it is whole."""
    folder = Path(path)
    if folder.is_file():
        raise UserError(f"cannot save to {folder}: it is a file, and a model is a folder")
    if (folder / NAME).exists() and not overwrite:
        raise UserError(f"{folder} already holds a model: choose another folder, or save(..., overwrite=True)")
    widths = {"switchable": net.switchable} if net.switchable else {"min_width": net.min_width}
    description = {**net.family.describe(), **widths, "metadata": net.metadata}
    try:
        json.dumps(description)
    except (TypeError, ValueError) as error:
        raise UserError(f"cannot save to {folder}: net.metadata must hold plain values only ({error})") from None
    weights = net.weights()
    net.certain_digest()
    write_tensors(folder / "weights.safetensors", weights)
    write_statistics(net, folder)
    write_description(folder, description)


def write_statistics(net: Slimmable, folder: Path) -> None:
    """Write the batch-norm statistics of the present weights; those of others are left out, with a warning."""
    present = net.digest
    kept = [calibration for calibration in net.calibrations if calibration.weights == present]
    if stale := len(net.calibrations) - len(kept):
        warnings.warn(
            f"the weights have changed since {stale} widths were calibrated, so their statistics are not saved: "
            "call us3l.calibrate(net, images) before saving",
            stacklevel=3,
        )
    statistics = {f"{one.width}/{name}": tensor for one in kept for name, tensor in one.statistics.items()}
    write_tensors(folder / "statistics.safetensors", statistics, {WEIGHTS: present})


def load(path: str | Path, family: Family | Callable[[Any], nn.Module] | None = None) -> Slimmable:
    """Read a model's folder. No code in it is run.

    Statistics that do not belong to the weights beside them are kept, and refused when used: see `Slimmable`.

    Args:
        path: The folder of a model, or that of a run.
        family: What the network was made of, if that was a function of the user's own.

    Returns:
        The network as it was saved, on the CPU.
    """
    folder = Path(path)
    if holds_model(folder / "model"):  # a run's folder
        folder = folder / "model"
    description = read_description(folder)
    weights = read_weights(folder / "weights.safetensors", description)
    message = f"{folder / 'weights.safetensors'} does not fit its model.json"
    if family is None and description.get("backbone") is None:
        family = current_family()
    if family is None:  # by shapes alone first: what model.json says might need any amount of memory
        with torch.device("meta"), WithoutFilling():
            full = build(folder, description | {"switchable": None}, None).full
        check_same(message, {name: weights[name] for name in weights if "/" not in name}, shapes_of(tensors_of(full)))
    net = build(folder, description, family)
    own = net.weights()
    check_same(message, weights, shapes_of(own))
    if odd := [name for name in own if own[name].is_floating_point() != weights[name].is_floating_point()]:
        raise UserError(f"{message}: {odd[0]} holds {weights[odd[0]].dtype}")
    copy_weights(weights, own)
    widths, recorded = read_statistics(folder / "statistics.safetensors")
    fresh = recorded is None or recorded == net.digest or recorded == digest(weights)  # the file's type may be another
    largest = statistics_shapes(net, FULL)
    for width, statistics in widths.items():
        for name, tensor in statistics.items():  # whether they fit exactly is seen when that network is built
            if name not in largest or tensor.ndim != 1 or len(tensor) > largest[name][0]:
                raise UserError(f"{folder / 'statistics.safetensors'} does not fit its model.json: {width}, {name}")
        kept = {name: tensor.clone() for name, tensor in statistics.items()}  # those read lie in the file
        net.set_statistics(width, kept, None if fresh else recorded)
    return net


def load_plain(net: Slimmable, state: Mapping[str, Tensor]) -> None:
    """See `Slimmable.load_plain`."""
    found = {name: tensor for name, tensor in state.items() if not name.endswith("num_batches_tracked")}
    statistics = {name: found.pop(name) for name in statistics_shapes(net, FULL) if name in found}
    own = tensors_of(net.full)
    check_same("the state dict does not fit width 1 of this network", found, shapes_of(own))
    if statistics:
        check_same("the state dict's batch norms do not fit", statistics, statistics_shapes(net, FULL))
    copy_weights(found, own)
    net.norms.reset(net.shared_slices)
    net.forget_calibration()
    if statistics:
        net.set_statistics(1.0, {name: tensor.detach().cpu().clone() for name, tensor in statistics.items()})


def build(folder: Path, description: dict[str, Any], family: Family | Callable[[Any], nn.Module] | None) -> Slimmable:
    try:
        widths = {key: description[key] for key in ("min_width", "switchable") if key in description}
        depth, switchable = description["options"].get("depth") or 0, len(widths.get("switchable") or ())
        if depth > MOST_LAYERS or switchable > MOST_SWITCHABLE:
            raise ValueError(
                f"depth {depth} is more than {MOST_LAYERS}, or {switchable} switchable widths than {MOST_SWITCHABLE}"
            )
        if family is not None:
            net = Slimmable(family, **widths)
        elif description["backbone"] is None:
            raise UserError(
                f"{folder} holds a network of your own family {description.get('family')!r:.80}: say where it is, "
                "`backbone='MODULE:NAME'`, or in Python load(path, family=...)"
            )
        else:
            net = create(description["backbone"], **widths, **description["options"])
        net.metadata = dict(description["metadata"])
    except UserError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
        reason = str(error).splitlines()[0] if str(error) else ""
        raise UserError(f"cannot read {folder / NAME}: {type(error).__name__} {reason}") from None
    return net


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file; what the system refuses is an `OSError`, as everywhere."""
    with replacing(path) as temporary:
        try:
            save_file(
                {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, temporary, metadata
            )
        except safetensors.SafetensorError as error:
            code = re.search(r"os error (\d+)", str(error))
            number = int(code[1]) if code else errno.EIO
            raise OSError(number, os.strerror(number) if code else str(error), str(path)) from None


def read_tensors(path: Path, whole_numbers: bool = False) -> dict[str, Tensor]:
    """Return the tensors in a file; those of whole numbers must be allowed.

    They lie in the mapped file: copy those that are kept. When the file is written over, what was not copied becomes
    other numbers; when it is cut short, touching it ends the process.
    """
    try:
        tensors = load_file(check_regular(path))
        odd = [name for name, tensor in tensors.items() if not tensor.is_floating_point()]
        if odd and not whole_numbers:
            raise ValueError(f"{odd[0]} does not hold numbers with fractions")
    except UserError:
        raise
    except (OSError, safetensors.SafetensorError, ValueError, KeyError, AttributeError, RuntimeError) as error:
        raise UserError(f"cannot read {path}: the file is missing, cut short or damaged ({error})") from None
    return tensors


def read_torch(file: Path | BinaryIO) -> Any:
    """Return what `torch.save` wrote: tensors and plain values, nothing else. Errors may be of any kind.

    A file cannot become more memory than its own size: nothing in it may be compressed.
    """
    with zipfile.ZipFile(check_regular(file) if isinstance(file, Path) else file) as archive:
        if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
            raise ValueError("it is compressed, which torch.save never does")
    if not isinstance(file, Path):
        file.seek(0)
    try:
        return whole(torch.load(file, map_location="cpu", weights_only=True))
    except pickle.UnpicklingError:  # whose message advises to run the code
        raise ValueError("it is damaged, or holds more than tensors and plain values") from None


def whole(value: Any) -> Any:
    """Return the value; raise if a small file could ask for any amount of memory or time by it: a tensor that repeats
    what it holds, or lists that hold each other again and again."""
    left, seen = [value], 0
    while left:
        item = left.pop()
        seen += 1
        if seen > MOST_VALUES:
            raise ValueError(f"it has more than {MOST_VALUES:,} values")
        if isinstance(item, Tensor):
            if item.numel() * item.element_size() > item.untyped_storage().nbytes():
                raise ValueError(f"a tensor of shape {tuple(item.shape)} has fewer values than that")
        elif isinstance(item, dict):
            left.extend(item.values())
        elif isinstance(item, list | tuple | set):
            left.extend(item)
    return value


def read_weights(path: Path, description: dict[str, Any]) -> dict[str, Tensor]:
    """Return the weights of a model; raise if its switchable widths do not each have norms of their own.

    That is seen before anything is built for them.
    """
    weights = read_tensors(path, whole_numbers=True)
    switchable = description.get("switchable")
    if not isinstance(switchable, list):
        return weights
    if len({name.rpartition("/")[0] for name in weights} - {""}) != len(switchable) - 1:
        raise UserError(f"{path} does not fit its model.json: it has norms for another number of switchable widths")
    return weights


def read_statistics(path: Path) -> tuple[dict[Width, Statistics], str | None]:
    """Return statistics by width, and the digest of their weights, which earlier versions did not write."""
    widths: dict[Width, Statistics] = {}
    try:
        for key, tensor in read_tensors(path).items():
            text, _, name = key.partition("/")
            widths.setdefault(Width(text), {})[name] = tensor
        with safetensors.safe_open(path, "pt") as file:
            return widths, (file.metadata() or {}).get(WEIGHTS)
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"cannot read {path}: not a width, {error}") from None


def shapes_of(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def statistics_shapes(net: Slimmable, width: Width) -> dict[str, tuple[int, ...]]:
    norms = batch_norms(net.skeleton(width))
    return {f"{name}.{kind}": (norm.num_features,) for name, norm in norms.items() for kind in KINDS}


def check_same(message: str, found: Mapping[str, Tensor], expected: dict[str, tuple[int, ...]]) -> None:
    """Raise an error that names the tensors that are missing, unexpected or of other shapes, after the message."""
    shapes = shapes_of(found)
    wrong = [f"missing {name} {shape}" for name, shape in expected.items() if name not in shapes]
    wrong += [f"unexpected {name} {shape}" for name, shape in shapes.items() if name not in expected]
    wrong += [
        f"{name} is {shape} but should be {expected[name]}"
        for name, shape in shapes.items()
        if expected.get(name, shape) != shape
    ]
    if wrong:
        more = f"; and {len(wrong) - NAMED} more" if len(wrong) > NAMED else ""
        raise UserError(f"{message}: {'; '.join(wrong[:NAMED])}{more}")


@torch.no_grad()
def copy_weights(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    for name, tensor in target.items():
        tensor.copy_(source[name])
