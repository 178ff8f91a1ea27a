"""Training a detector: exact to the bit after an interruption, because all chance comes from the seed and the step."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from us3l.detection.detector import build_detector, detector_of
from us3l.detection.examples import Example, Examples, loader, training_batches
from us3l.detection.scenes import SceneSet
from us3l.detection.schedule import DetectorTraining, LearningRates
from us3l.families import create
from us3l.slimmable import Slimmable
from us3l.storage import read_torch
from us3l.system.errors import UserError
from us3l.system.files import replacing
from us3l.system.stopping import Interrupted
from us3l.width import Width

MOMENTUM, WEIGHT_DECAY = 0.9, 1e-4
State = dict[str, Any]


class DetectorTrainer:
    """One step of training at a time."""

    def __init__(self, detector: nn.Module, plan: LearningRates, seed: int) -> None:
        self.detector, self.plan, self.seed = detector, plan, seed
        self.device = next(detector.parameters()).device
        parameters = [parameter for parameter in detector.parameters() if parameter.requires_grad]
        self.optimiser = torch.optim.SGD(parameters, lr=plan.lr, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
        self.losses: list[float] = []
        self.skipped: list[str] = []

    @property
    def step(self) -> int:
        return len(self.losses)

    def train_step(self, examples: list[Example]) -> None:
        for group in self.optimiser.param_groups:
            group["lr"] = self.plan.learning_rate(self.step)
        images = [image.to(self.device) / 255 for image, _ in examples]
        targets = [{name: value.to(self.device) for name, value in target.items()} for _, target in examples]
        self.detector.train()
        # torchvision draws image sizes and regions from the global generators.
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(int(np.random.SeedSequence((self.seed, self.step)).generate_state(1)[0]))
            loss = torch.stack(list(self.detector(images, targets).values())).sum()
        if not loss.isfinite():
            raise UserError(f"the loss is {loss.item()} at step {self.step}: lower `lr` ({self.plan.lr:g} now)")
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        self.losses.append(loss.item())

    def state(self) -> State:
        return {
            "model": self.detector.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "losses": self.losses,
            "skipped": self.skipped,
        }

    def load_state(self, state: State) -> None:
        self.detector.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.losses, self.skipped = state["losses"], state["skipped"]


def train_detector(
    net: Slimmable,
    width: Width,
    scene_set: SceneSet,
    masks: bool,
    training: DetectorTraining,
    path: Path,
    *,
    resume: bool = False,
    device: str | torch.device = "cpu",
    workers: int = 0,
    save_every: int = 200,
    asked_to_stop: Callable[[], bool] = lambda: False,
    progress: Callable[[int, list[float]], None] = lambda *_: None,
) -> DetectorTrainer:
    """Train a detector on the network of that width; its state lies at `path` in the end and now and then before.

    `progress` is called after each step with the number of all steps and the losses so far.
    """
    scene_set = scene_set.learnable()
    plan = training.plan(scene_set.layout)
    detector = detector_of(net, width, len(scene_set.classes), masks, training, scene_set.layout).to(device)
    trainer = DetectorTrainer(detector, plan, training.seed)
    about = {
        **net.family.describe(),
        "width": Width(width).as_plain(),
        "preprocessing": net.metadata.get("preprocessing") or {},
        "layout": scene_set.layout,
        "classes": list(scene_set.classes),
        "masks": masks,
        "training": asdict(training),
        "scenes": fingerprint(scene_set),
    }
    if resume:
        state = read_detector(path)
        try:
            check_unchanged(path, state["about"], about)
            trainer.load_state(state)
        except UserError:
            raise
        except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise UserError(f"{path} does not fit this detector: {str(error).splitlines()[0]}") from None

    def save() -> None:
        with replacing(path) as temporary:
            torch.save({"about": about, **trainer.state()}, temporary)

    batches = training_batches(len(scene_set), training.batch, trainer.step, plan.steps, training.seed)
    examples = Examples(scene_set, masks)
    for batch in loader(examples, batches, workers):
        damaged = dict.fromkeys(one for one in batch if isinstance(one, str))  # each once
        trainer.skipped += [one for one in damaged if one not in trainer.skipped]
        trainer.train_step([one for one in batch if not isinstance(one, str)] or [stand_in(examples)])
        stopping = asked_to_stop()
        if stopping or trainer.step % save_every == 0 or trainer.step == plan.steps:
            save()
        progress(plan.steps, trainer.losses)
        if stopping and trainer.step < plan.steps:
            raise Interrupted(
                f"stopped after step {trainer.step} of {plan.steps}; the state is saved in {path}. Continue with the "
                "same settings and `resume=True`"
            )
    return trainer


def stand_in(examples: Examples) -> Example:
    """The first image that is not damaged, for a batch that has none."""
    for index in range(len(examples.scenes)):
        example = examples[index, False]
        if not isinstance(example, str):
            return example
    raise UserError(f"every training image is damaged: {example}")


def fingerprint(scene_set: SceneSet) -> str:
    """Of the images' names and their boxes."""
    known = [(scene.image.name, [(one.label, one.box) for one in scene.instances]) for scene in scene_set.scenes]
    return hashlib.sha256(repr(known).encode()).hexdigest()


def check_unchanged(path: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    """A resumed training keeps its settings and its data."""

    def flat(about: dict[str, Any]) -> dict[str, Any]:
        return about | about["training"]

    changed = [name for name, value in flat(now).items() if name != "training" and flat(before).get(name) != value]
    if "scenes" in changed:
        raise UserError(f"the training images or their boxes are not those that {path} was started with")
    if changed:
        differences = ", ".join(f"{name} was {flat(before).get(name)}, is {flat(now)[name]}" for name in changed)
        raise UserError(f"{path} was started with other settings, which a resumed training keeps: {differences}")


def read_detector(path: Path) -> State:
    """A detector's file. Reading it never runs code."""
    if not path.exists():
        raise UserError(f"there is no {path} to continue from: leave out `resume`")
    try:
        state = read_torch(path)
        if not {"about", "model", "optimiser", "losses", "skipped"} <= set(state):
            raise ValueError("it holds no detector")
    except Exception as error:  # torch raises errors of many kinds on damaged files
        raise UserError(f"cannot read {path}: {str(error).splitlines()[0]}") from None
    return state


def load_detector(path: str | Path) -> nn.Module:
    """A trained detector in eval mode, from the file that `us3l detect` wrote; `detector.classes` are their names.

    It takes a list of images (3 x H x W, values from 0 to 1), and labels count from 1.
    """
    state = read_detector(Path(path))
    try:
        about = state["about"]
        if about["backbone"] is None:
            raise UserError(f"{path} has a backbone of your own family, which only you can build")
        width = Width.from_plain(about["width"])
        net = create(about["backbone"], min_width=min(width.widths), **about["options"])
        training, classes = DetectorTraining(**about["training"]), len(about["classes"])
        detector = build_detector(
            net.family, net.blank(width), classes, about["masks"], training, about["layout"], about["preprocessing"]
        )
        detector.load_state_dict(state["model"])
        detector.classes = about["classes"]
    except UserError:
        raise
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"cannot build the detector in {path}: {str(error).splitlines()[0]}") from None
    return detector.eval()
