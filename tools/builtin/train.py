"""Train the built-in network: `python -m tools.builtin.train --out RUN`. Stop it at any time; start it to go on.

    python -m tools.builtin.train --out RUN                              learn at a constant rate until stopped
    python -m tools.builtin.train --out COPY --start RUN --cool 400      a copy, whose rate falls to zero in 400 steps

A run's folder holds `state.pt` (all that is needed to go on exactly), `log.jsonl` and the teacher's maps.
"""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from torch import Tensor

from tools.builtin.elastic import Elastic, copy_into, sorted_source
from tools.builtin.images import ImageList, cut, draw_boxes, preprocessed, read_images, resized
from tools.builtin.measure import HeldOut
from tools.builtin.recipe import Recipe, distillation
from tools.builtin.teacher import Targets, Teacher

WEIGHTS = "weights/mobilenet_v2-imagenet1k.safetensors"
LOOKS = ((0.25, 128), (0.5, 128))


@dataclass(frozen=True)
class Command:
    """Train the built-in network."""

    out: Path
    """Folder of the run; one that exists is continued."""
    data: Path = Path("../shared/data")
    """With the images and the source's weights."""
    targets: Path | None = None
    """Folder for the teacher's maps, which runs can share (default: in OUT)."""
    start: Path | None = None
    """A run's folder to start from, at its step."""
    steps: int = 10**9
    """Stop at this step."""
    cool: int = 0
    """Let the rate fall to zero in this many steps from the start, then stop."""
    measure_every: int = 400
    """Steps between looks at held-out images; 0: none."""
    save_every: float = 120.0
    """Seconds between checkpoints."""
    recipe: Recipe = field(default_factory=Recipe)
    """Of a new run."""


class Training:
    """The network, its optimiser, the average of its weights, and the step they are at."""

    def __init__(self, recipe: Recipe, weights: Path) -> None:
        self.recipe, self.step, self.seconds = recipe, 0, 0.0
        self.cooling: tuple[int, int] | None = None
        self.net = sorted_source(weights).train()
        self.elastic = Elastic(self.net)
        named = dict(self.net.full.named_parameters())
        matrices = [one for one in named.values() if one.ndim > 1]
        vectors = [one for one in named.values() if one.ndim <= 1]
        groups = [{"params": matrices, "weight_decay": recipe.decay}, {"params": vectors, "weight_decay": 0.0}]
        self.optimiser = torch.optim.AdamW(groups, lr=recipe.rate, fused=True)
        self.average = {name: one.detach().clone() for name, one in named.items()}

    def learn(self, images: ImageList, targets: Targets) -> dict[float, float]:
        """Take one step; return the loss of each width."""
        recipe = self.recipe
        rows = batch_rows(images, recipe, self.step)
        draw = np.random.default_rng((recipe.seed, self.step))
        boxes = draw_boxes(images, rows, draw)
        flipped = torch.from_numpy(draw.random(len(rows)) < 0.5)
        subnets = recipe.draw(self.step)
        largest = max(size for _, size in subnets)
        crops, target = cut(images, rows, boxes, largest), targets.of(rows, boxes)
        rate, losses = recipe.rate_at(self.step, self.cooling), {}
        for width, size in subnets:
            features = self.elastic(width, preprocessed(resized(crops, (size, size)), flipped))
            classifier = targets.teacher.weight, targets.teacher.bias
            loss = distillation(recipe, features, target, classifier)
            self.optimiser.zero_grad()
            loss.backward()
            for group in self.optimiser.param_groups:
                group["lr"] = rate * recipe.rate_share(width)
            self.optimiser.step()
            losses[width] = loss.item()
        self.step += 1
        self.update_average()
        return losses

    @torch.no_grad()
    def update_average(self) -> None:
        """Move the average of the weights towards the present ones; in the first steps it follows quickly."""
        share = min(self.recipe.averaging, self.step / (self.step + 10))
        for name, parameter in self.net.full.named_parameters():
            self.average[name].lerp_(parameter, 1 - share)

    def state(self) -> dict[str, Any]:
        weights: dict[str, Tensor] = {name: one.detach() for name, one in self.net.full.named_parameters()}
        return {
            "step": self.step,
            "seconds": self.seconds,
            "cooling": self.cooling,
            "recipe": asdict(self.recipe),
            "weights": weights,
            "average": self.average,
            "optimiser": self.optimiser.state_dict(),
        }

    def load(self, state: dict[str, Any]) -> None:
        self.step, self.seconds, self.cooling = state["step"], state["seconds"], state["cooling"]
        copy_into(self.net, state["weights"])
        self.average = {name: one.clone() for name, one in state["average"].items()}
        self.optimiser.load_state_dict(state["optimiser"])


def batch_rows(images: ImageList, recipe: Recipe, step: int) -> list[int]:
    """Return the images of a step: each once per epoch, but of the blurred ones only every other."""
    sharp, blurred = np.flatnonzero(~images.blurred), np.flatnonzero(images.blurred)
    half = len(blurred) // 2
    steps = max(1, (len(sharp) + half) // recipe.batch)
    epoch, place = divmod(step, steps)
    chosen = np.concatenate([sharp, blurred[epoch % 2 :: 2][:half]])
    order = np.random.default_rng((recipe.seed, epoch, 2)).permutation(chosen)
    return order[place * recipe.batch : (place + 1) * recipe.batch].tolist()


def save(state: dict[str, Any], path: Path) -> None:
    """Write a checkpoint; a kill at any moment leaves the old one or the new one."""
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def open_training(command: Command) -> Training:
    """Return the run as it was left, the start of a cooled copy, or a new one."""
    weights, own = command.data / WEIGHTS, command.out / "state.pt"
    source = own if own.exists() else command.start / "state.pt" if command.start else None
    if source is None:
        return Training(command.recipe, weights)
    state = torch.load(source, weights_only=True)
    training = Training(Recipe(**{name: as_tuple(value) for name, value in state["recipe"].items()}), weights)
    training.load(state)
    if source != own and command.cool:
        training.cooling = training.step, training.step + command.cool
    return training


def as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def run(command: Command) -> Training:
    """Train until the last step, or until asked to stop."""
    command.out.mkdir(parents=True, exist_ok=True)
    images = read_images(command.data)
    training = open_training(command)
    teacher = Teacher(command.data / WEIGHTS)
    targets = Targets(command.targets or command.out / "targets", images, teacher)
    targets.prepare(lambda done, count: print(f"teacher: {done} of {count}", flush=True) if done % 1024 < 32 else None)
    held_out = HeldOut(images, read_images(command.data, held_out=True), teacher, every=4)
    stopped: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: stopped.append(number))
    last = min(command.steps, training.cooling[1] if training.cooling else command.steps)
    saved, losses = time.monotonic(), []
    while training.step < last and not stopped:
        started = time.process_time()
        losses.append(training.learn(images, targets))
        training.seconds += time.process_time() - started
        if training.step % 20 == 0:
            note(command.out, {"step": training.step, "seconds": round(training.seconds), **mean_losses(losses)})
            losses = []
        if command.measure_every and training.step % command.measure_every == 0:
            note(command.out, {"step": training.step, "figures": measured(training, held_out)})
        if time.monotonic() - saved > command.save_every:
            save(training.state(), command.out / "state.pt")
            saved = time.monotonic()
    save(training.state(), command.out / "state.pt")
    return training


def mean_losses(losses: list[dict[float, float]]) -> dict[str, float]:
    """Return the mean loss of the narrowest width, of those up to 0.5, of wider ones, and of the full width."""
    kinds: dict[str, list[float]] = {}
    for width, loss in (item for one in losses for item in one.items()):
        kind = "0.25" if width == 0.25 else "to 0.5" if width <= 0.5 else "wide" if width < 1 else "1"
        kinds.setdefault(kind, []).append(loss)
    return {kind: round(float(np.mean(values)), 4) for kind, values in kinds.items()}


def measured(training: Training, held_out: HeldOut) -> dict[str, dict[str, float]]:
    """Return held-out figures of the averaged weights; the present ones are put back."""
    present = {name: one.detach().clone() for name, one in training.net.full.named_parameters()}
    copy_into(training.net, training.average)
    figures = held_out.table(training.net, LOOKS)
    copy_into(training.net, present)
    training.net.train()
    return figures


def note(folder: Path, values: dict[str, Any]) -> None:
    """Add a line to the run's log."""
    line = json.dumps({"time": time.strftime("%H:%M:%S"), **values})
    print(line, flush=True)
    with open(folder / "log.jsonl", "a") as file:
        file.write(line + "\n")


def main() -> None:
    from us3l.system.devices import keep_freed_memory

    torch.set_num_threads(1)
    keep_freed_memory()
    run(tyro.cli(Command))


if __name__ == "__main__":
    main()
