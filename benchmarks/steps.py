"""Whole steps of training: US3L against SimCLR written directly on torchvision."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
import torchvision
from lightning_fabric import Fabric
from torch import nn
from torch.nn import functional as F

import us3l
from benchmarks.networks import training
from benchmarks.timing import Row, best_seconds
from us3l.data.augment import random_views
from us3l.data.sources import ImageSet
from us3l.evaluation.prepare import NINE_WIDTHS
from us3l.objective.learner import Outputs, Targets, detached
from us3l.objective.sampling import sample_widths
from us3l.slimmable import Slimmable
from us3l.training.recipes import CIFAR, Recipe
from us3l.training.trainer import Trainer
from us3l.width import Width

STEPS = 8  # two in each quarter of the schedule
BATCH = 64


def rows() -> Iterator[Row]:
    yield from against_simclr("us3l")
    yield next(against_simclr("us3l-plus"))
    yield other_work()
    yield memory()


def arithmetic(recipe: Recipe, steps: int, seed: int) -> float:
    """Multiply-accumulates of a mean step over those of a plain one: networks by their widths squared, and a teacher
    that runs forward only, which is a third. Heads are left out."""
    drawn = (sample_widths(recipe.objective, recipe.network.min_width, step, steps, seed) for step in range(steps))
    return 1 / 3 + sum(float(width) ** 2 for widths in drawn for width in widths) / steps


def typical_seed(recipe: Recipe, steps: int) -> int:
    """So few steps draw widths that may be wide or narrow by chance; with this seed they are as in a long training."""
    usual = arithmetic(recipe, 10_000, seed=0)
    return min(range(100), key=lambda seed: abs(arithmetic(recipe, steps, seed) - usual))


def trainer(batch: int = BATCH, steps: int = STEPS, method: str = "us3l") -> Trainer:
    torch.manual_seed(0)
    images = torch.randint(0, 256, (batch * 2, 3, 32, 32), dtype=torch.uint8)
    recipe = CIFAR.with_method(method)
    seed = typical_seed(recipe, steps)
    recipe = replace(recipe, batch_size=batch, epochs=steps, max_steps=steps, seed=seed)
    return Trainer(recipe, ImageSet("noise", images), Fabric(accelerator="cpu"))


def simclr_step(network: nn.Module, features: int, batch: int = BATCH) -> Callable[[], None]:
    """A plain training step, with the views made as ours are, and a projector as large as ours."""
    hidden = CIFAR.objective.hidden
    layers = [nn.Linear(features, hidden), nn.BatchNorm1d(hidden), nn.ReLU()]
    layers += [nn.Linear(hidden, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, CIFAR.objective.dim)]
    model = nn.Sequential(network, *layers).train().to(memory_format=torch.channels_last)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    images = torch.randint(0, 256, (batch, 3, 32, 32), dtype=torch.uint8)
    generator = torch.Generator().manual_seed(0)

    def step() -> None:
        views = random_views(images, CIFAR.views, generator)
        z = F.normalize(torch.cat([model(view.contiguous(memory_format=torch.channels_last)) for view in views]), dim=1)
        logits = z @ z.T / 0.5
        logits.fill_diagonal_(float("-inf"))
        loss = F.cross_entropy(logits, torch.arange(2 * batch).roll(batch))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    return step


def torchvision_resnet18() -> nn.Module:
    network = torchvision.models.resnet18()
    network.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    network.maxpool, network.fc = nn.Identity(), nn.Identity()
    return network


def against_simclr(method: str) -> Iterator[Row]:
    ours = trainer(method=method)
    net = us3l.create("resnet18", stem="cifar")
    rivals: dict[str, Callable[[], object]] = {}
    for width in NINE_WIDTHS:
        single = net.carve(width).train()
        channels = single(torch.zeros(2, 3, 32, 32)).shape[1]
        rivals[f"alone {width}"] = simclr_step(single, channels)

    def at(step: int) -> None:
        ours.step = step
        ours.train_step()

    simclr = simclr_step(torchvision_resnet18(), 512)
    for step in range(STEPS):  # each of ours has a rival beside it, so that luck is even
        rivals[f"ours {step}"], rivals[f"simclr {step}"] = partial(at, step), simclr
        rivals[f"native {step}"] = natively(net, ours.widths(step))
    best = best_seconds(rivals, turns=3)
    mean, simclr_mean, native = (
        sum(best[f"{name} {step}"] for step in range(STEPS)) / STEPS for name in ("ours", "simclr", "native")
    )
    alone = sum(best[f"alone {width}"] for width in NINE_WIDTHS)
    what = f"resnet18, batch {BATCH}"
    limit = f"by arithmetic {arithmetic(ours.recipe, STEPS, ours.recipe.seed):.2f} and by its networks built natively "
    limit += f"{native / simclr_mean:.2f}, both without heads"
    whole = f"{method} step, mean over the schedule / SimCLR on torchvision ({what})"
    yield Row(whole, mean, simclr_mean, "s", 2.1, note=limit)
    yield Row(f"{method}, all widths at once / SimCLR at nine widths one by one ({what})", mean, alone, "s", 0.55)


def natively(net: Slimmable, widths: Sequence[Width]) -> Callable[[], None]:
    """What the networks of a step need at least: plain ones of these widths, and a teacher's forward."""
    views = [torch.randn(BATCH, 3, 32, 32).contiguous(memory_format=torch.channels_last) for _ in range(2)]
    networks = [net.carve(width).train().to(memory_format=torch.channels_last) for width in widths]
    teacher = net.carve(1.0).train().to(memory_format=torch.channels_last)
    jobs = [training(network, network, views) for network in networks]

    def step() -> None:
        with torch.no_grad():
            for view in views:
                teacher(view)
        for job in jobs:
            job()

    return step


def other_work(batch: int = 128) -> Row:
    """All that is no network's forward or backward, each part timed by itself, against the step in which it lies."""
    one = trainer(batch, steps=4)
    one.step = 3  # in the last quarter: three widths
    one.train_step()
    objective, learner = one.recipe.objective, one.learner
    z = tuple(torch.randn(batch, objective.dim, requires_grad=True) for _ in range(2))
    outputs = Outputs(z, z)
    targets: Targets = {"full": detached(z), "momentum_teacher": detached(z)}
    (base,), (imitation,) = objective.base_terms, objective.sub_terms

    def losses() -> None:
        total = learner.term_loss(base, *learner.pair(base, outputs, targets))
        compared = learner.pair(imitation, outputs, targets)
        for _ in range(2):
            total = total + learner.term_loss(imitation, *compared)
        total.backward()

    def views() -> None:
        one.step = 3
        one.take_batch()

    def step() -> None:
        one.step = 3
        one.train_step()

    parts: dict[str, Callable[[], object]] = {
        "views": views,
        "losses": losses,
        "teacher": partial(learner.update_teacher, 3, one.steps),
        "optimiser and regulariser": one.optimiser.step,
    }
    best = best_seconds({"step": step, **parts}, turns=3)
    spent = sum(best[name] for name in parts)
    note = ", ".join(f"{name} {best[name] * 1e3:.0f} ms" for name in parts)
    return Row(
        f"what is no network's work / US3L step (resnet18, batch {batch})", spent, best["step"], "s", 0.08, note=note
    )


def memory() -> Row:
    """The peak of a process, less what it takes before the first step."""
    ours, rival = peak("us3l"), peak("simclr")
    return Row(f"peak memory of a US3L step / a SimCLR step (resnet18, batch {BATCH})", ours, rival, "MB", 1.6)


def peak(which: str) -> float:
    command = [sys.executable, "-m", "benchmarks.steps", which]
    return float(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def measure_peak(which: str) -> float:
    step: Callable[[], object]
    if which == "simclr":
        step = simclr_step(torchvision_resnet18(), 512)
    else:
        one = trainer()
        one.step = STEPS - 2
        step = one.train_step
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far, which is also a parent's
    before = resident()
    step()
    step()
    return resident() - before


def resident() -> float:
    """The most memory this process had, in MB."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


if __name__ == "__main__":
    print(json.dumps(measure_peak(sys.argv[1])))
