"""`recipe="auto"`: the settings that fit some images and a computer, as a function of facts about both.

`look` gathers the facts, `choose` decides; neither prints anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from statistics import median
from typing import Any

import torch

from us3l.data.cached import cached_bytes
from us3l.data.images import ImageSet
from us3l.data.sources import Data, peek
from us3l.system.devices import (
    Device,
    Precision,
    available_memory,
    choose_device,
    precision_here,
    usable_cores,
)
from us3l.system.progress import SILENT, Progress
from us3l.training.recipes import Optimiser, Recipe, named, times
from us3l.training.run_config import Machine, RunConfig

TINY = 32
"""Pixels: pictures up to this side are trained on by the recipe "mini", on any device."""
CPU_SIZES = (96, 64, 56, 48, 40)
GPU_SIZES = (224, 192, 160, 128, *CPU_SIZES)
"""Sides of views to choose from, the best first: the largest that the images have, and that fits into memory."""
FEW, MANY = 1_000, 500_000
"""Images: below the first, training from scratch gives little; from the second on, a GPU trains a ResNet-50."""
CORE_BUDGET = 300_000
"""Views of 32 pixels by the recipe "mini" that a core is asked for: an hour and a half (docs/lab/performance.md)."""
GPU_VIEWS = 400 * 50_000
"""Images that the paper's runs on CIFAR look at; those on ImageNet have 100 epochs."""
BY_ADAMW = ("vit", "convnext")
"""Names of backbones that begin so are trained by AdamW, as the recipes for ViTs are."""
MANY_CORES = 8
"""From here on a CPU trains twice the channels."""
BYTES = {
    "resnet18": (450, 4_700), "resnet50": (1_800, 26_000), "mobilenet_v2": (1_650, 19_500),
    "efficientnet_b0": (2_000, 24_500), "convnext_atto": (710, 11_200), "convnext_tiny": (2_460, 39_100),
    "vit_tiny": (720, 10_200), "vit_small": (1_430, 20_400),
}  # fmt: skip
"""What a network with 64 channels keeps for the backward pass, per pixel of an image, with the stem "imagenet" and
"cifar", in 32 bits (tests/training/test_auto.py measures it)."""
ALWAYS = 2**30  # bytes that a process takes without any images: libraries, weights, optimiser, teacher
HEADROOM = 1.5  # beside what is kept for the backward pass: gradients, the teacher's activations, workspace
CPU_SHARE, GPU_SHARE = 0.4, 0.75  # of the memory for a step; the rest is for images, and for others
SMALLEST_BATCH = 64  # a smaller one is only chosen where nothing else fits


@dataclass(frozen=True)
class AutoFacts:
    """What is known about some images and a computer."""

    images: int
    shapes: tuple[tuple[int, int], ...]
    """Heights and widths of a sample; empty if none could be read."""
    labelled: bool = False
    cores: int = 2
    memory: int | None = None
    """Bytes that are free; None if the system does not say."""
    device: Device = "cpu"
    """The kind of device that trains; not "auto"."""
    device_name: str = ""
    device_memory: int | None = None
    """Bytes that are free on a GPU."""
    precision: Precision = "32-true"
    """The arithmetic that suits the device: see `us3l.system.devices.precision_for`."""

    @property
    def side(self) -> int:
        """The typical shorter side, in pixels."""
        return round(median(map(min, self.shapes))) if self.shapes else 0

    @property
    def gpu(self) -> bool:
        return self.device != "cpu"

    @property
    def step_memory(self) -> float:
        """Bytes that a step of training may take."""
        if self.gpu and self.device_memory is not None:
            return GPU_SHARE * self.device_memory
        return math.inf if self.memory is None else CPU_SHARE * self.memory

    def __str__(self) -> str:
        """
        >>> print(AutoFacts(4_000, ((600, 800),), cores=2, memory=2**34))
        4,000 images of about 800 x 600 pixels, without labels; a CPU with 2 cores, 16.0 GiB of memory free
        """
        height, width = (round(median(sides)) for sides in zip(*self.shapes, strict=True)) if self.shapes else (0, 0)
        sides = f"of about {width} x {height} pixels" if self.shapes else "of unknown size"
        computer = f"a GPU ({self.device_name or self.device})" if self.gpu else f"a CPU with {self.cores} cores"
        free = self.device_memory if self.gpu else self.memory
        room = "" if free is None else f", {free / 2**30:.1f} GiB of memory free"
        return f"{self.images:,} images {sides}, with{'' if self.labelled else 'out'} labels; {computer}{room}"


@dataclass(frozen=True)
class AutoChoice:
    """The settings that fit, and why."""

    name: str
    """The recipe that they begin with."""
    config: RunConfig
    why: str
    """One line about the images and the computer."""
    warnings: tuple[str, ...] = ()

    @property
    def what(self) -> str:
        """One line about the settings."""
        recipe = self.config.recipe
        return (
            f"recipe {self.name}: {recipe.network.backbone} with {recipe.network.base} channels at first, views of "
            f"{recipe.views.size} pixels, batches of {recipe.batch_size}, {count(recipe.epochs, 'epoch')}, "
            f"optimiser {recipe.optimiser.algorithm}, precision {self.config.machine.precision}"
        )

    @property
    def otherwise(self) -> str:
        """One line about how to change them."""
        return (
            "to change it: `size=N`, `base=N`, `batch_size=N`, `epochs=N`, `method=NAME` or `recipe=NAME` (us3l "
            "recipes lists both); how long it takes is measured on the first steps"
        )


def look(data: Data, settings: Mapping[str, Any] | None = None, progress: Progress = SILENT) -> AutoFacts:
    """Return the facts about images to train on, and about this computer.

    Args:
        data: See `us3l.data.sources.open_images`; only the headers of a few hundred images are read.
        settings: Those that the user gave, by their bare names: `images` and `accelerator` matter here.
        progress: Told how far it is, where looking takes long.
    """
    settings = settings or {}
    files = peek(data, settings.get("images"), progress)
    shapes = [(files.images.shape[2], files.images.shape[3])] if isinstance(files, ImageSet) else files.shapes()
    device = choose_device(settings.get("accelerator", "auto"))
    return AutoFacts(
        images=len(files),
        shapes=tuple(shapes),
        labelled=files.labels is not None,
        cores=usable_cores(),
        memory=available_memory(),
        device=device.type,  # type: ignore[arg-type]
        precision=precision_here(device.type),  # type: ignore[arg-type]
        **(_gpu() if device.type == "cuda" else {}),
    )


def choose(facts: AutoFacts, settings: Mapping[str, Any] | None = None) -> AutoChoice:
    """Choose the settings that fit.

    Args:
        facts: About the images and the computer.
        settings: Those that the user gave, by their bare names; they are not chosen.

    >>> choice = choose(AutoFacts(4_000, ((600, 800),), cores=2, memory=2**34))
    >>> choice.name, choice.config.recipe.views.size, choice.config.recipe.batch_size
    ('mini-photos', 96, 128)
    """
    settings = settings or {}
    sizes = (settings["size"],) if settings.get("size") else _sizes(facts)
    name = "mini" if sizes[0] <= TINY else "photos" if facts.gpu else "mini-photos"
    machine = Machine(precision=facts.precision)
    for candidate in _candidates(named(name), sizes, facts, settings, name):
        config = _with_settings(candidate, machine, settings)
        if step_bytes(config) <= facts.step_memory:
            break
    recipe = config.recipe
    if "epochs" not in settings and name != "mini":
        recipe = replace(recipe, epochs=_epochs(recipe, facts))
    images, bound = cached_bytes(facts.shapes, facts.images, recipe.views), config.machine.memory_gib * 2**30
    streams = config.machine.stream or images > min(bound, math.inf if facts.memory is None else facts.memory // 2)
    if streams and images <= bound:
        config = replace(config, machine=replace(config.machine, stream=True))
    if recipe.network.backbone.startswith(BY_ADAMW) and "algorithm" not in settings:
        recipe = replace(recipe, optimiser=_adamw(recipe, facts))
    config = replace(config, recipe=recipe)
    return AutoChoice(
        name, config, f"because: {facts}{_why(name, facts, settings, streams)}", _warnings(config, facts, settings)
    )


def step_bytes(config: RunConfig) -> float:
    """Estimate the memory that a step takes on one device, on the careful side."""
    recipe, machine = config.recipe.resolved(), config.machine
    network, size = recipe.network, recipe.views.size
    per_pixel = 12 + BYTES.get(network.backbone, BYTES["resnet50"])[network.stem == "cifar"] * network.base / 64
    per_image = 2 * per_pixel * size**2 * (1.0 if machine.precision == "32-true" else 0.6)
    return ALWAYS + HEADROOM * per_image * recipe.batch_size / (machine.devices * machine.accumulate)


def count(number: int, what: str) -> str:
    """Return a number of things.

    >>> count(1, "epoch"), count(2, "epoch")
    ('1 epoch', '2 epochs')
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _sizes(facts: AutoFacts) -> tuple[int, ...]:
    """Return the sides of views that the images are large enough for, the best first."""
    sizes = GPU_SIZES if facts.gpu else CPU_SIZES
    return tuple(size for size in sizes if size <= facts.side) or (TINY,)


def _candidates(
    start: Recipe, sizes: tuple[int, ...], facts: AutoFacts, settings: Mapping[str, Any], name: str
) -> Iterator[Recipe]:
    """Return recipes, the best first: smaller batches before smaller views and networks, tiny batches at last."""
    backbones = ("resnet50", "resnet18") if name == "photos" and facts.images >= MANY else (start.network.backbone,)
    base = 2 * start.network.base if name == "mini-photos" and facts.cores >= MANY_CORES else start.network.base
    most = start.batch_size if name == "mini" else max(SMALLEST_BATCH, facts.images // 4)
    batches = [batch for halvings in range(5) if (batch := start.batch_size // 2**halvings) <= most]
    good = (
        [settings["batch_size"]]
        if "batch_size" in settings
        else [batch for batch in batches if batch >= SMALLEST_BATCH]
    )
    small = [] if "batch_size" in settings else batches[len(good) :]
    last = ((backbones[-1], sizes[-1], batch) for batch in small)
    for backbone, size, batch in (*product(backbones, sizes, good), *last):
        share = 1 if "batch_size" in settings else batch / start.batch_size
        yield replace(
            start,
            network=replace(start.network, backbone=backbone, base=base),
            views=replace(start.views, size=size),
            batch_size=batch,
            optimiser=replace(start.optimiser, lr=times(start.optimiser.lr, share)),
        )


def _with_settings(recipe: Recipe, machine: Machine, settings: Mapping[str, Any]) -> RunConfig:
    """Return the settings with those of the user that decide about memory."""
    network = {name: settings[name] for name in ("backbone", "base", "stem") if settings.get(name)}
    computed = {name: settings[name] for name in ("devices", "accumulate", "memory_gib", "stream") if name in settings}
    if settings.get("precision", "auto") != "auto":
        computed["precision"] = settings["precision"]
    epochs = settings.get("epochs", recipe.epochs)
    recipe = replace(recipe, network=replace(recipe.network, **network), epochs=epochs)
    return RunConfig("", recipe, replace(machine, **computed))


def _epochs(recipe: Recipe, facts: AutoFacts) -> int:
    """Return as many as in the paper for this many images on a GPU; on a CPU as many as its cores are asked for."""
    if facts.gpu:
        return min(400, max(100, GPU_VIEWS // facts.images))
    resolved = recipe.resolved()
    side = resolved.views.size / (1 if resolved.network.stem == "cifar" else 4)  # of the first stage
    cost = (side / 32) ** 2 * (recipe.network.base / 16) ** 2
    return min(200, max(1, round(CORE_BUDGET * facts.cores / (cost * facts.images))))


def _adamw(recipe: Recipe, facts: AutoFacts) -> Optimiser:
    """Return the optimiser of the recipes for ViTs, its rate in proportion to the batch, its warm-up to the epochs."""
    like = named("cifar-vit-tiny" if facts.gpu else "mini-cifar-vit-tiny")
    lr = times(like.optimiser.lr, recipe.batch_size / like.batch_size)
    return replace(like.optimiser, lr=lr, warmup=times(like.optimiser.warmup, recipe.epochs / like.epochs))


def _why(name: str, facts: AutoFacts, settings: Mapping[str, Any], streams: bool) -> str:
    reasons = {
        "mini": "pictures this small need no larger network",
        "mini-photos": f"views of this size and this many epochs are what {count(facts.cores, 'core')} can train",
        "photos": "epochs are the paper's for this many images, the batch is one that fits into the GPU's memory",
    }
    chosen = [] if {"size", "epochs", "batch_size"} & settings.keys() else [reasons[name]]
    chosen += ["the images do not fit into memory, so they are read while training"] if streams else []
    return "".join(f"; {reason}" for reason in chosen)


def _warnings(config: RunConfig, facts: AutoFacts, settings: Mapping[str, Any]) -> tuple[str, ...]:
    warnings = []
    if facts.images < FEW and not settings.get("init"):
        warnings.append(
            f"{count(facts.images, 'image')}: a network that starts from scratch learns little from so few. Start from "
            "a pretrained one (`init=WHAT`), or add images of the same kind, which need no labels: a thousand or more"
        )
    if (needed := step_bytes(config)) > facts.step_memory:
        warnings.append(
            f"a step may need {needed / 2**30:.1f} GiB, and {facts.step_memory / 2**30:.1f} GiB are there for it: "
            "lower `size`, `base` or `batch_size`, or compute batches in parts (`accumulate=2`)"
        )
    return tuple(warnings)


def _gpu() -> dict[str, Any]:
    """About the first GPU: the others are taken to be the same."""
    return {"device_name": torch.cuda.get_device_name(), "device_memory": torch.cuda.mem_get_info()[0]}
