"""Where a step of the recipe slim spends its processor time, and what mixed precision saves: `python -m
benchmarks.slim_step`. A MobileNetV2 at 96 pixels, batches of 64, one thread; both precisions take turns, step by step.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torchvision
import tyro
from lightning_fabric import Fabric

from us3l.data.sources import ImageSet
from us3l.system.devices import keep_freed_memory
from us3l.training.initial import open_pretrained
from us3l.training.recipes import named
from us3l.training.run_config import RunConfig
from us3l.training.run_networks import new_networks
from us3l.training.trainer import Trainer

PRECISIONS = ("32-true", "bf16-mixed")


@dataclass(frozen=True)
class SlimStep:
    """Time the parts of a step of the recipe slim."""

    steps: int = 6
    """Of each precision, after one that does not count."""


def trainer(precision: Any) -> Trainer:
    torch.manual_seed(0)
    source = open_pretrained(torchvision.models.mobilenet_v2().eval())  # its speed does not depend on its weights
    recipe = replace(source.configure(RunConfig("", named("slim"))).recipe.resolved(), epochs=100)
    images = torch.randint(0, 256, (2 * recipe.batch_size, 3, 110, 110), dtype=torch.uint8)
    fabric, networks = Fabric(accelerator="cpu", precision=precision), new_networks(recipe, source=source)
    return Trainer(recipe, ImageSet("noise", images), fabric, networks=networks)


def timed(one: Trainer) -> dict[str, float]:
    """The processor seconds of each part of its steps from now on, which add up there."""
    spent: dict[str, float] = defaultdict(float)

    def watch(owner: Any, name: str, part: str) -> None:
        work: Callable[..., Any] = getattr(owner, name)

        def watched(*given: Any, **named: Any) -> Any:
            started = time.process_time()
            result = work(*given, **named)
            spent[part] += time.process_time() - started
            return result

        setattr(owner, name, watched)

    watch(one, "take_batch", "views")
    watch(one.learner, "targets", "teacher")
    watch(one.learner, "run", "forward")
    watch(one.learner, "term_loss", "losses")
    watch(one.fabric, "backward", "backward")
    watch(one, "update", "optimiser")
    watch(one, "train_step", "step")
    return spent


def main() -> None:
    command = tyro.cli(SlimStep)
    torch.set_num_threads(1)
    keep_freed_memory()
    trainers = {precision: trainer(precision) for precision in PRECISIONS}
    for one in trainers.values():
        one.train_step()
    spent = {precision: timed(one) for precision, one in trainers.items()}
    for _ in range(command.steps):
        for one in trainers.values():  # of the same seed, so of the same widths
            one.train_step()
    for precision, parts in spent.items():
        shares = ", ".join(f"{part} {100 * parts[part] / parts['step']:.0f} %" for part in parts if part != "step")
        print(f"{precision}: {parts['step'] / command.steps:.2f} s of processor time per step; {shares}")
    first, second = (spent[precision]["step"] for precision in PRECISIONS)
    print(f"{PRECISIONS[1]} takes {second / first:.2f} of the time of {PRECISIONS[0]}")


if __name__ == "__main__":
    main()
