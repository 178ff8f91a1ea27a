"""A model on disk: `weights.safetensors`, `statistics.safetensors` and `model.json`. Reading it never runs code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from us3l.errors import UserError
from us3l.families import BACKBONES, create
from us3l.files import read_json, replacing, write_json
from us3l.slimmable import Family, Slimmable, Statistics, batch_norms, tensors_of
from us3l.width import Width

FORMAT = 1


def save(net: Slimmable, path: str | Path, overwrite: bool = False) -> None:
    """Write a model's folder. `model.json` comes last: a folder that has it is whole."""
    folder = Path(path)
    if folder.is_file():
        raise UserError(f"cannot save to {folder}: it is a file, and a model is a folder")
    if (folder / "model.json").exists() and not overwrite:
        raise UserError(f"{folder} already holds a model: choose another folder, or save(..., overwrite=True)")
    write_tensors(folder / "weights.safetensors", tensors_of(net.full))
    statistics = {
        f"{encode(width)}/{name}": tensor for width, kept in net.statistics.values() for name, tensor in kept.items()
    }
    write_tensors(folder / "statistics.safetensors", statistics)
    write_json(
        folder / "model.json",
        {"format": FORMAT, **describe(net.family), "min_width": net.min_width, "metadata": net.metadata},
    )


def load(path: str | Path, family: Family | None = None) -> Slimmable:
    """Read a model's folder. Only a network of the user's own needs its `family` given again."""
    folder = Path(path)
    if not (folder / "model.json").is_file():
        raise UserError(f"{folder} holds no model: there is no model.json in it")
    description = read_json(folder / "model.json")
    if description.get("format") != FORMAT:
        raise UserError(f"{folder} has format {description.get('format')}, but this version reads {FORMAT}")
    net = build(folder, description, family)
    weights = read_tensors(folder / "weights.safetensors")
    own = tensors_of(net.full)
    check_same(folder / "weights.safetensors", weights, {name: tensor.shape for name, tensor in own.items()})
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(weights[name])
    for width, statistics in read_statistics(folder / "statistics.safetensors").items():
        norms = batch_norms(net.skeleton(width))
        shapes = {
            f"{n}.{k}": (norm.num_features,) for n, norm in norms.items() for k in ("running_mean", "running_var")
        }
        check_same(folder / "statistics.safetensors", statistics, shapes)
        net.set_statistics(width, statistics)
    return net


def describe(family: Family) -> dict[str, Any]:
    """Name and options of a backbone of ours; a user's own family is only named."""
    if getattr(family, "name", None) in BACKBONES:
        options = dict(vars(family))
        return {"backbone": options.pop("name"), "options": options}
    return {"backbone": None, "options": {}, "family": getattr(family, "__qualname__", type(family).__qualname__)}


def build(folder: Path, description: dict[str, Any], family: Family | None) -> Slimmable:
    try:
        min_width = float(description["min_width"])
        if family is not None:
            net = Slimmable(family, min_width)
        elif description["backbone"] is None:
            raise UserError(
                f"{folder} holds a network of your own family {description.get('family')!r}: load(path, family=...)"
            )
        else:
            net = create(description["backbone"], min_width=min_width, **description["options"])
        net.metadata = dict(description["metadata"])
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"cannot read {folder / 'model.json'}: {type(error).__name__} {error}") from None
    return net


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    with replacing(path) as temporary:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, temporary)


def read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, safetensors.SafetensorError) as error:
        raise UserError(f"cannot read {path}: the file is missing, cut short or damaged ({error})") from None


def read_statistics(path: Path) -> dict[Width, Statistics]:
    found: dict[Width, Statistics] = {}
    for key, tensor in read_tensors(path).items():
        width, _, name = key.partition("/")
        found.setdefault(decode(path, width), {})[name] = tensor
    return found


def check_same(path: Path, tensors: dict[str, Tensor], shapes: dict[str, Any]) -> None:
    for name in shapes.keys() | tensors.keys():
        expected, found = shapes.get(name), tensors[name].shape if name in tensors else None
        if expected is None or found is None or tuple(expected) != tuple(found):
            raise UserError(f"{path} does not fit its model.json: {name} should be {expected}, but is {found}")


def encode(width: Width) -> str:
    return ",".join(f"{number:.8g}" for number in ((width,) if isinstance(width, int | float) else width))


def decode(path: Path, text: str) -> Width:
    try:
        numbers = tuple(float(number) for number in text.split(","))
    except ValueError:
        raise UserError(f"cannot read {path}: {text!r} is no width") from None
    return numbers[0] if len(numbers) == 1 else numbers
