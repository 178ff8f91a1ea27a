"""What settings suit a machine, by what was found: a pure function."""

from __future__ import annotations

import math

from us3l.checkup.findings import DeviceCheck, Inventory, Measured, Recommendation

FASTER = 1.1  # times, from which on one precision counts as faster than another
SHARE = 0.8  # of the memory that a step may take


def recommend(
    inventory: Inventory, checks: list[DeviceCheck], measured: Measured, batch_size: int
) -> list[Recommendation]:
    """Settings for `us3l pretrain` on this machine, each with its reason.

    Args:
        inventory: What there is.
        checks: What was checked; a precision that failed is not recommended.
        measured: What was measured.
        batch_size: That of the recipe.
    """
    found = [precision(checks, measured)] if measured.steps else []
    if measured.loader and measured.steps:
        found.append(workers(inventory, measured))
    if measured.memory_per_image:
        found.append(batch(inventory, measured, batch_size))
    return found


def precision(checks: list[DeviceCheck], measured: Measured) -> Recommendation:
    failed = {check.name.rpartition(" ")[2] for check in checks if not check.passed}
    speeds = {name: speed for name, speed in measured.steps.items() if name not in failed}
    plain = measured.steps.get("32-true", 0.0)
    best = max(speeds, key=lambda name: speeds[name], default="32-true")
    if best == "32-true" or speeds[best] < FASTER * plain:
        others = [f"{name} makes {speed:.0f}" for name, speed in measured.steps.items() if name != "32-true"]
        return Recommendation(
            "precision", "32-true", f"{plain:.0f} images/s; {', '.join(others) or 'nothing shorter suits this device'}"
        )
    return Recommendation("precision", best, f"{speeds[best]:.0f} images/s, 32-true makes {plain:.0f}")


def workers(inventory: Inventory, measured: Measured) -> Recommendation:
    """How many reading processes keep up with the steps."""
    assert measured.loader
    each = measured.loader / max(1, measured.workers)
    speed = max(measured.steps.values())
    needed = max(1, math.ceil(speed / each))
    told = f"one reads {each:.0f} images/s, a step takes {speed:.0f}"
    if needed > inventory.usable_cores:
        told += f"; it would take {needed}: keep images in memory (`memory_gib`) where they fit"
    return Recommendation("US3L_WORKERS", str(min(needed, inventory.usable_cores)), told)


def batch(inventory: Inventory, measured: Measured, batch_size: int) -> Recommendation:
    """The recipe's batch, in as many parts as memory needs."""
    assert measured.memory_per_image
    memory = max((gpu.memory for gpu in inventory.gpus), default=0) if inventory.device == "cuda" else None
    room = SHARE * (memory or inventory.available_memory or math.inf)
    parts = 1
    while parts < batch_size // 2 and measured.memory_per_image * batch_size / parts > room:
        parts *= 2
    need = measured.memory_per_image * batch_size / parts / 2**30
    told = f"a step of {batch_size // parts} images takes about {need:.1f} GiB"
    if parts == 1:
        return Recommendation("batch_size", str(batch_size), f"{told}, which is there")
    return Recommendation("accumulate", str(parts), f"{told}; all {batch_size} at once do not fit")
