"""What a checkup found, as lines for people."""

from __future__ import annotations

from us3l.checkup.findings import Inventory, Measured


def inventory_lines(inventory: Inventory) -> list[str]:
    """What there is."""
    memory = [
        f"{bytes_ / 2**30:.1f} GiB" if bytes_ else "?" for bytes_ in (inventory.memory, inventory.available_memory)
    ]
    installed = [name for name, missing in inventory.extras.items() if not missing]
    lacking = [f"{name} (needs {', '.join(missing)})" for name, missing in inventory.extras.items() if missing]
    return [
        f"system      {inventory.system}",
        f"processor   {inventory.processor}: {inventory.usable_cores} of {inventory.cores} cores may be used",
        f"memory      {memory[0]}, {memory[1]} available",
        *(
            f"GPU         {gpu.name}, {gpu.memory / 2**30:.1f} GiB, capability {gpu.capability}"
            for gpu in inventory.gpus
        ),
        f"device      {inventory.device}",
        f"versions    {', '.join(f'{name} {number}' for name, number in inventory.versions.items())}",
        f"extras      {', '.join(installed) or 'none'}; not installed: {', '.join(lacking) or 'none'}",
        f"decoders    {', '.join(f'{kind}: {by}' for kind, by in inventory.decoders.items())}",
    ]


def speed_lines(measured: Measured) -> list[str]:
    """How fast it is, as far as it was measured."""
    told = [f"speed of recipe {measured.recipe}, {measured.size} pixels, batches of {measured.batch}"]
    told += [f"  a step in {name}: {speed:.1f} images/s" for name, speed in measured.steps.items()]
    if measured.loader:
        told.append(f"  reading JPEGs of 640 x 480, {measured.workers} processes: {measured.loader:.1f} images/s")
    if measured.streamed and measured.waiting is not None:
        told.append(
            f"  training while reading: {measured.streamed:.1f} images/s, {measured.waiting:.0%} of the time waiting"
        )
    if measured.memory_per_image:
        told.append(f"  peak memory of a step: {measured.memory_per_image * measured.batch / 2**30:.2f} GiB")
    return told
