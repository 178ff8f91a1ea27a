"""What there is on this machine: cores, memory, devices, versions."""

from __future__ import annotations

import math
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import torch
from PIL import features

from us3l.checkup.findings import Gpu, Inventory
from us3l.data.decode import quick_decoder
from us3l.data.in_memory import available_memory
from us3l.system.devices import processor_name

NEEDED = ("torch", "torchvision", "lightning-fabric", "numpy", "pillow", "pyarrow", "safetensors")
EXTRAS = {
    "deploy": ("nncf", "onnx", "onnxruntime", "onnxscript", "openvino"),
    "executorch": ("executorch",),
    "detect": ("pycocotools",),
    "serve": ("httptools", "prometheus_client", "python_multipart", "simplejpeg", "starlette", "uvicorn"),
    "lars": ("timm",),
    "tensorboard": ("tensorboard",),
    "wandb": ("wandb",),
    "mlflow": ("mlflow",),
    "search": ("faiss",),
    "hub": ("huggingface_hub",),
    "jpeg": ("simplejpeg",),
    "timm": ("timm",),
}
"""The modules of each optional extra of pyproject.toml that users ask for."""


def take_inventory(device: torch.device) -> Inventory:
    """Look around.

    Args:
        device: The one that is going to be checked.
    """
    return Inventory(
        system=f"{platform.system()} {platform.release()} {platform.machine()}",  # without the machine's name
        processor=processor_name(),
        cores=os.cpu_count() or 1,
        usable_cores=usable_cores(),
        memory=total_memory(),
        available_memory=available_memory(),
        device=device.type,
        gpus=gpus(),
        versions=versions(),
        extras={name: [part for part in parts if find_spec(part) is None] for name, parts in EXTRAS.items()},
        decoders=decoders(),
    )


def usable_cores(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """The cores that this process may use.

    Args:
        quota: Where a container's share of them is written: microseconds, or "max", of each period.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        allowed, period = quota.read_text(encoding="utf-8").split()
        return max(1, min(cores, math.ceil(int(allowed) / int(period))))
    except (OSError, ValueError, ZeroDivisionError):
        return cores


def total_memory() -> int | None:
    """Bytes, if the system says."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def gpus() -> list[Gpu]:
    """The CUDA devices."""
    found = []
    for number in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        about = torch.cuda.get_device_properties(number)
        found.append(Gpu(about.name, about.total_memory, (about.major, about.minor)))
    return found


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in NEEDED:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "missing"
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    if torch.backends.cudnn.is_available():
        found["cudnn"] = str(torch.backends.cudnn.version())
    return found


def decoders() -> dict[str, str]:
    """What decodes each kind of image that may be missing."""
    pillow = {"jpeg": "jpg", "png": "zlib", "webp": "webp", "tiff": "libtiff"}
    found = {name: "Pillow" if features.check(part) else "missing" for name, part in pillow.items()}
    turbo = features.version("libjpeg_turbo")
    found["jpeg"] += f" (libjpeg-turbo {turbo})" if turbo else ""
    if quick_decoder() is not None:
        found["jpeg"] += ", simplejpeg" if find_spec("simplejpeg") else ", torchvision"
    return found
