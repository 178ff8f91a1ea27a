"""A model on disk: `weights.safetensors`, `statistics.safetensors` and `model.json`. Reading it never runs code."""

from __future__ import annotations

import errno
import os
import pickle
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import safetensors
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from us3l.errors import UserError
from us3l.families import BACKBONES, Individual, create
from us3l.files import check_regular, read_json, replacing, write_json
from us3l.slimmable import Family, Slimmable, Statistics, batch_norms, tensors_of
from us3l.width import Width

FORMAT = 1
NAMED = 4  # tensors that an error names
MOST_LAYERS = 1000


def save(net: Slimmable, path: str | Path, overwrite: bool = False) -> None:
    """Write a model's folder. `model.json` comes last: a folder that has it is whole."""
    folder = Path(path)
    if folder.is_file():
        raise UserError(f"cannot save to {folder}: it is a file, and a model is a folder")
    if (folder / "model.json").exists() and not overwrite:
        raise UserError(f"{folder} already holds a model: choose another folder, or save(..., overwrite=True)")
    write_tensors(folder / "weights.safetensors", net.weights())
    statistics = {
        f"{encode(width)}/{name}": tensor for width, kept in net.statistics.values() for name, tensor in kept.items()
    }
    write_tensors(folder / "statistics.safetensors", statistics)
    widths = {"switchable": net.switchable} if net.switchable else {"min_width": net.min_width}
    write_json(
        folder / "model.json",
        {"format": FORMAT, **describe(net.family), **widths, "metadata": net.metadata},
    )


def load(path: str | Path, family: Family | None = None) -> Slimmable:
    """Read a model's folder. Only a network of the user's own needs its `family` given again."""
    folder = Path(path)
    if (folder / "model" / "model.json").is_file():  # a run's folder
        folder = folder / "model"
    if not (folder / "model.json").is_file():
        raise UserError(f"{folder} holds no model: there is no model.json in it")
    description = read_json(folder / "model.json")
    if description.get("format") != FORMAT:
        raise UserError(f"{folder} has format {description.get('format')}, but this version reads {FORMAT}")
    weights = read_tensors(folder / "weights.safetensors")
    message = f"{folder / 'weights.safetensors'} does not fit its model.json"
    if family is None:  # by shapes alone first: what model.json says might need any amount of memory
        with torch.device("meta"):
            check_same(message, weights, shapes_of(build(folder, description, None).weights()))
    net = build(folder, description, family)
    check_same(message, weights, shapes_of(net.weights()))
    copy_weights(weights, net.weights())
    for width, statistics in read_statistics(folder / "statistics.safetensors").items():
        message = f"{folder / 'statistics.safetensors'} does not fit its model.json"
        check_same(message, statistics, statistics_shapes(net, width))
        net.set_statistics(width, statistics)
    return net


def load_plain(net: Slimmable, state: Mapping[str, Tensor]) -> None:
    """See `Slimmable.load_plain`."""
    found = {name: tensor for name, tensor in state.items() if not name.endswith("num_batches_tracked")}
    statistics = {name: found.pop(name) for name in statistics_shapes(net, 1.0) if name in found}
    own = tensors_of(net.full)
    check_same("the state dict does not fit width 1 of this network", found, shapes_of(own))
    if statistics:
        check_same("the state dict's batch norms do not fit", statistics, statistics_shapes(net, 1.0))
    copy_weights(found, own)
    for number in net.switchable:  # each width's own norms start anew, from those of width 1
        copy_weights(net.leading(number), net.own_norms(number))
    for width, _ in list(net.statistics.values()):
        net.set_statistics(width, None)
    if statistics:
        net.set_statistics(1.0, {name: tensor.detach().cpu().clone() for name, tensor in statistics.items()})


def describe(family: Family) -> dict[str, Any]:
    """Name and options of a backbone of ours; a user's own family is only named."""
    if isinstance(family, Individual):
        known = describe(family.family)
        return known | {"options": known["options"] | {"individual": family.individual}}
    if getattr(family, "name", None) in BACKBONES:
        options = dict(vars(family))
        return {"backbone": options.pop("name"), "options": options}
    return {"backbone": None, "options": {}, "family": getattr(family, "__qualname__", type(family).__qualname__)}


def build(folder: Path, description: dict[str, Any], family: Family | None) -> Slimmable:
    try:
        widths = {key: description[key] for key in ("min_width", "switchable") if key in description}
        for name, count in (
            ("depth", description["options"].get("depth")),
            ("switchable", len(widths.get("switchable", ()))),
        ):
            if count is not None and count > MOST_LAYERS:
                raise ValueError(f"{name} {count} is more than {MOST_LAYERS}")
        if family is not None:
            net = Slimmable(family, **widths)
        elif description["backbone"] is None:
            raise UserError(
                f"{folder} holds a network of your own family {description.get('family')!r}: load(path, family=...)"
            )
        else:
            net = create(description["backbone"], **widths, **description["options"])
        net.metadata = dict(description["metadata"])
    except UserError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
        reason = str(error).splitlines()[0] if str(error) else ""
        raise UserError(f"cannot read {folder / 'model.json'}: {type(error).__name__} {reason}") from None
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


def read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        tensors = load_file(check_regular(path))
        if odd := [name for name, tensor in tensors.items() if not tensor.is_floating_point()]:
            raise ValueError(f"{odd[0]} does not hold numbers with fractions")
    except (OSError, safetensors.SafetensorError, ValueError, KeyError, AttributeError, RuntimeError) as error:
        raise UserError(f"cannot read {path}: the file is missing, cut short or damaged ({error})") from None
    return tensors


def read_torch(file: Path | BinaryIO) -> Any:
    """What `torch.save` wrote: tensors and plain values, nothing else. Errors may be of any kind.

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
    """The value, unless a tensor in it repeats what it holds: a small file could ask for any amount of memory."""
    if isinstance(value, Tensor):
        if value.numel() * value.element_size() > value.untyped_storage().nbytes():
            raise ValueError(f"a tensor of shape {tuple(value.shape)} has fewer values than that")
    elif isinstance(value, dict):
        for item in value.values():
            whole(item)
    elif isinstance(value, list | tuple | set):
        for item in value:
            whole(item)
    return value


def read_statistics(path: Path) -> dict[Width, Statistics]:
    found: dict[Width, Statistics] = {}
    for key, tensor in read_tensors(path).items():
        width, _, name = key.partition("/")
        found.setdefault(decode(path, width), {})[name] = tensor
    return found


def shapes_of(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def statistics_shapes(net: Slimmable, width: Width) -> dict[str, tuple[int, ...]]:
    norms = batch_norms(net.skeleton(width))
    return {f"{n}.{k}": (norm.num_features,) for n, norm in norms.items() for k in ("running_mean", "running_var")}


def check_same(message: str, found: Mapping[str, Tensor], expected: dict[str, tuple[int, ...]]) -> None:
    """An error that begins with the message and names the tensors that are missing, unexpected or of other shapes."""
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


def encode(width: Width) -> str:
    return ",".join(f"{number:.8g}" for number in ((width,) if isinstance(width, int | float) else width))


def decode(path: Path, text: str) -> Width:
    try:
        numbers = tuple(float(number) for number in text.split(","))
    except ValueError:
        raise UserError(f"cannot read {path}: {text!r} is no width") from None
    return numbers[0] if len(numbers) == 1 else numbers
