"""A whole checkup, part after part."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import datetime

import torch

from us3l import __version__
from us3l.checkup.checks import failure, plans
from us3l.checkup.findings import Checkup, DeviceCheck, Measured
from us3l.checkup.inventory import take_inventory
from us3l.checkup.recommending import recommend
from us3l.checkup.speeds import in_memory, photos, time_loader, time_steps
from us3l.data.loader import default_workers
from us3l.system.devices import Device, Precision, choose_device, precision_here
from us3l.system.errors import UserError
from us3l.system.progress import SILENT, Count, Progress
from us3l.training.recipes import Recipe, named

BATCH = 64  # images per timed step, which fit nearly everywhere


def examine(
    device: Device = "auto", recipe: str | None = None, seconds: float = 5.0, progress: Progress = SILENT
) -> Checkup:
    """Look at this machine, check and measure its device, and recommend settings.

    Args:
        device: Which device.
        recipe: Whose steps are timed (default: "mini" on a CPU, "imagenet-resnet18" elsewhere).
        seconds: Time for each measurement, about.
        progress: Hears how far it is.
    """
    if not seconds > 0:
        raise UserError(f"seconds={seconds:g} must be above 0")
    started = time.perf_counter()
    where = choose_device(device)
    name = recipe or ("mini" if where.type == "cpu" else "imagenet-resnet18")
    chosen, precision = named(name).settled(), precision_here(device)
    todo = plans(where, precision)
    precisions: list[Precision] = list(dict.fromkeys(("32-true", precision)))
    with progress.counting("checking and measuring", len(todo) + len(precisions) + 2) as count:
        inventory = take_inventory(where)
        checks = []
        for plan in todo:
            checks.append(plan.carry_out())
            count.more(1)
        measured, trouble = measure(name, chosen, where, precisions, seconds, count)
    checks += trouble
    return Checkup(
        us3l=__version__,
        date=f"{datetime.now().astimezone():%F}",
        seconds=round(time.perf_counter() - started, 1),
        inventory=inventory,
        checks=checks,
        measured=measured,
        recommendations=recommend(inventory, checks, measured, chosen.batch_size),
    )


def measure(
    name: str, recipe: Recipe, device: torch.device, precisions: list[Precision], seconds: float, count: Count
) -> tuple[Measured, list[DeviceCheck]]:
    """Speeds and memory; what cannot be measured is a check that failed."""
    size, batch = recipe.views.size, min(BATCH, recipe.batch_size)
    found = Measured(name, size, batch, default_workers())
    trouble: list[DeviceCheck] = []
    for precision in precisions:
        try:
            timed = time_steps(recipe, in_memory(batch, size), batch, device, precision, seconds)
            found = replace(found, steps=found.steps | {precision: timed.speed})
            if timed.memory:
                found = replace(found, memory_per_image=timed.memory / batch)
        except Exception as error:
            trouble.append(failure(f"speed of a step in {precision}", error))
        count.more(1)
    try:
        with photos() as files:
            found = replace(found, loader=time_loader(recipe, files, batch, device, seconds).speed)
            count.more(1)
            timed = time_steps(recipe, files, batch, device, precisions[-1], seconds)
            found = replace(found, streamed=timed.speed, waiting=timed.waited / timed.seconds)
    except Exception as error:
        trouble.append(failure("reading images", error))
    count.more(1)
    return found, trouble
