"""The linear classifiers that evaluation learned, one a width, as a file: with a carved network they name images."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import safetensors
import torch
from safetensors.torch import save_file

from us3l.errors import UserError
from us3l.evaluation.linear import Probe
from us3l.files import parse_json, replacing

METADATA = "us3l"


def save_probes(path: str | Path, probes: Mapping[float, Probe], classes: list[str] | None, data: str) -> None:
    """Write a safetensors file with "WIDTH/weight" (C x D) and "WIDTH/bias", and the classes and the data's name."""
    tensors = {}
    for width, probe in probes.items():
        tensors[f"{width:g}/weight"] = probe.weight.detach().cpu().float().contiguous()
        tensors[f"{width:g}/bias"] = probe.bias.detach().cpu().float().contiguous()
    with replacing(Path(path)) as temporary:
        save_file(tensors, temporary, {METADATA: json.dumps({"classes": classes, "data": data})})


def load_probes(path: str | Path) -> tuple[dict[float, Probe], list[str] | None, str]:
    """The probes by width, the names of their classes if known, and the name of the data they were learned on."""
    try:
        with safetensors.safe_open(path, "pt") as file:
            described = parse_json(file.metadata()[METADATA])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dictionary)
        classes, data = described["classes"], described["data"]
        if not isinstance(data, str) or not (classes is None or _texts(classes)):
            raise ValueError("the names of its classes or of its data are no text")
        widths = {name.split("/")[0] for name in tensors}
        probes = {
            _width(width): _checked(Probe(tensors[f"{width}/weight"], tensors[f"{width}/bias"]), classes)
            for width in sorted(widths, key=float, reverse=True)
        }
        return probes, classes, data
    except FileNotFoundError:
        raise UserError(f"there is no file {path}: us3l evaluate writes it") from None
    except (OSError, safetensors.SafetensorError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"cannot read {path}: it is cut short, damaged or holds no probes ({error})") from None


def _texts(values: object) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _width(text: str) -> float:
    width = float(text)
    if not 0 < width <= 1:
        raise ValueError(f"{text} is no width")
    return width


def _checked(probe: Probe, classes: list[str] | None) -> Probe:
    count = probe.bias.numel()
    if (
        probe.weight.ndim != 2
        or probe.bias.shape != probe.weight.shape[:1]
        or (classes is not None and len(classes) != count)
    ):
        raise ValueError(f"weight {tuple(probe.weight.shape)} and bias {tuple(probe.bias.shape)} do not fit together")
    if {probe.weight.dtype, probe.bias.dtype} != {torch.float32}:
        raise ValueError(f"weights are {probe.weight.dtype} and {probe.bias.dtype}")
    return probe
