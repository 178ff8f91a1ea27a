"""Settings of functions with `**settings`, for type checkers: made by tools/setting_names.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypedDict

from us3l.objective.loss_table import BaseLoss, DistillLoss
from us3l.setting_types import AnyPath, Asked, SomePaths
from us3l.training.initial import Init
from us3l.training.run_config import RunConfig


class CompareNames(TypedDict, total=False):
    progress: Asked
    data: str | None
    metric: Literal["linear", "knn", "finetuned"] | None
    out: SomePaths
    overwrite: bool


class ReportNames(TypedDict, total=False):
    progress: Asked
    data_root: AnyPath | None
    out: AnyPath | None
    overwrite: bool
    images: bool
    data: str | None


class PretrainNames(TypedDict, total=False):
    progress: Asked
    resume: bool
    recipe: str | None
    method: str | None
    case: str | None
    scale: Literal["mini", "small", "paper"]
    config: AnyPath | RunConfig | None
    network: Callable[[Any], Any] | None
    backbone: str
    stem: Literal["auto", "cifar", "imagenet"]
    base: int
    min_width: float
    individual: float | None
    switchable: bool
    patch: int | None
    heads: int | None
    depth: int | None
    frozen_patches: bool
    base_loss: BaseLoss
    distill_loss: DistillLoss
    relation_temperature: float
    teacher_features: float
    teacher_relations: float
    width_power: float
    head: Literal["none", "shared", "new"]
    momentum_base: bool
    momentum_sub: bool
    temperature: float
    teacher_temperature: float
    queue: int
    teacher_momentum: float | None
    teacher_memory: float
    teacher_schedule: Literal["constant", "cosine"]
    hidden: int
    predictor: int
    dim: int
    final_norm: bool
    projector_norm: bool
    samples: int
    sandwich: bool
    stratified: bool
    max_first: bool
    full_alone: float
    gradual: bool
    mixed: float
    mixed_depth: float
    fixed_widths: tuple[float, ...] | None
    update: Literal["per-batch", "per-width"]
    sub_crop: float | None
    groups: int
    alpha: float
    alpha_ramp: tuple[float, float] | None
    size: int
    crop_scale: tuple[float, float]
    flip: float
    jitter: float
    brightness: float
    contrast: float
    saturation: float
    hue: float
    grey: float
    blur: float
    second_blur: float | None
    solarise: float
    second_solarise: float | None
    algorithm: Literal["sgd", "lars", "adamw"]
    lr: float
    warmup: float
    momentum: float
    weight_decay: float
    epochs: int
    batch_size: int
    init: Init | None
    teacher: Init | None
    teacher_size: int | None
    max_steps: int | None
    images: int | None
    validation: bool
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    seed: int
    follow_base_loss: bool
    calibration: int
    accelerator: Literal["auto", "cpu", "cuda", "mps"]
    devices: int
    precision: Literal["auto", "32-true", "bf16-mixed", "16-mixed"]
    compile: bool
    sync_bn: bool
    accumulate: int
    checkpoint_every: int
    skip_bad_steps: int
    stop_on_collapse: bool
    loggers: tuple[Literal["tensorboard", "wandb", "mlflow"], ...]
    max_bad_images: int
    calibrated_widths: tuple[float, ...] | None
    stream: bool
    memory_gib: float
