"""List what this machine has: cores, memory, devices, versions, optional extras, image decoders."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

import psutil
import torch
from PIL import features

from us3l.system.devices import processor_name, usable_cores

NEEDED = ("torch", "torchvision", "lightning-fabric", "numpy", "pillow", "pyarrow", "safetensors")
EXTRAS = {
    "deploy": ("nncf", "onnx", "onnxruntime", "onnxscript", "openvino"),
    "executorch": ("executorch",),
    "detect": ("pycocotools",),
    "serve": ("h11", "prometheus_client", "python_multipart", "starlette", "uvicorn"),
    "lars": ("timm",),
    "tensorboard": ("tensorboard",),
    "wandb": ("wandb",),
    "mlflow": ("mlflow",),
    "search": ("faiss",),
    "hub": ("huggingface_hub",),
    "timm": ("timm",),
}
"""The modules of each optional extra of pyproject.toml that users ask for."""


@dataclass(frozen=True)
class Gpu:
    """A CUDA device."""

    name: str
    memory: int
    """Bytes."""
    capability: tuple[int, int]


@dataclass(frozen=True)
class Inventory:
    """What a machine has."""

    system: str
    processor: str
    cores: int
    usable_cores: int
    """The cores that this process may use."""
    memory: int
    """Bytes."""
    available_memory: int
    device: str
    """The device that was checked: cuda, mps or cpu."""
    gpus: list[Gpu]
    versions: dict[str, str]
    """Of Python, PyTorch and the libraries that us3l needs; of CUDA and cuDNN, if PyTorch was built with them."""
    extras: dict[str, list[str]]
    """The modules that each optional extra lacks; an empty list if it is installed."""
    decoders: dict[str, str]
    """The libraries that decode each image format."""


def take_inventory(device: torch.device) -> Inventory:
    """Return what this machine has.

    Args:
        device: The device that is checked.
    """
    memory = psutil.virtual_memory()
    return Inventory(
        system=f"{platform.system()} {platform.release()} {platform.machine()}",  # without the machine's name
        processor=processor_name(),
        cores=os.cpu_count() or 1,
        usable_cores=usable_cores(),
        memory=memory.total,
        available_memory=memory.available,
        device=device.type,
        gpus=gpus(),
        versions=versions(),
        extras={name: [part for part in parts if find_spec(part) is None] for name, parts in EXTRAS.items()},
        decoders=decoders(),
    )


def gpus() -> list[Gpu]:
    """Return the CUDA devices."""
    devices = []
    for number in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        about = torch.cuda.get_device_properties(number)
        devices.append(Gpu(about.name, about.total_memory, (about.major, about.minor)))
    return devices


def versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that us3l needs."""
    numbers = {"python": platform.python_version()}
    for name in NEEDED:
        try:
            numbers[name] = version(name)
        except PackageNotFoundError:
            numbers[name] = "missing"
    if torch.version.cuda:
        numbers["cuda"] = torch.version.cuda
    if torch.backends.cudnn.is_available():
        numbers["cudnn"] = str(torch.backends.cudnn.version())
    return numbers


def decoders() -> dict[str, str]:
    """Return the library that decodes each image format, or "missing"."""
    pillow = {"jpeg": "jpg", "png": "zlib", "webp": "webp", "tiff": "libtiff"}
    names = {name: "Pillow" if features.check(part) else "missing" for name, part in pillow.items()}
    turbo = features.version("libjpeg_turbo")
    names["jpeg"] += f" (libjpeg-turbo {turbo})" if turbo else ""
    return names
