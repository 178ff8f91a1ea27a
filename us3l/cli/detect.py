"""`us3l detect`"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from us3l.cli.parse import parse
from us3l.devices import Device, choose_device
from us3l.errors import UserError
from us3l.evaluation.detection.settings import Training

if TYPE_CHECKING:
    import torch
    from rich.console import Console

    from us3l.data.detection.scenes import SceneSet
    from us3l.evaluation.detection.predict import Findings
    from us3l.slimmable import Slimmable

REPORTS = 20  # losses shown in a training
NAMED = 5  # unusable images to name on the screen


@dataclass(frozen=True)
class Detect:
    """Detection and instance segmentation: Faster or Mask R-CNN with a feature pyramid, trained on one width.

    DATA is `voc` or `coco`, or a folder in the layout of either. Results come as a table, and in the run's folder as
    detect/NAME-WIDTHx.json and .png, with all detections (in COCO's form) and the detector itself beside them.

    examples:
      us3l detect runs/imagenet --data voc --width 0.5
      us3l detect runs/imagenet --data coco --width 1 --schedule 0.5 --batch 8
      us3l detect runs/photos --data my-boxes/ --width 0.25 --steps 500 --batch 4 --image-size 128 --channels 32 --floor
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run's folder, or a model's."""
    data: str
    """Images with boxes: voc, coco or a folder."""
    width: float
    """The sub-network's width."""
    masks: Literal["auto", "yes", "no"] = "auto"
    """Also learn masks (auto: if every object of the training images has one)."""
    training: Training = field(default_factory=Training)
    train_split: str | None = None
    """Split to train on (default: trainval or train of VOC's layout, train2017 of COCO's)."""
    test_split: str | None = None
    """Split to test on (default: test or val of VOC's layout, val2017 of COCO's)."""
    limit: int | None = None
    """Use only so many images of each split."""
    floor: bool = False
    """Also evaluate the same detector before training."""
    out: Path | None = None
    """Folder for the results (default: detect/ in the run's folder)."""
    resume: bool = False
    """Go on with a training that was stopped; give the same settings again."""
    overwrite: bool = False
    """Replace earlier results of this data and width."""
    save_every: int = 200
    """Steps between savings of the training's state."""
    workers: int = 2
    """Processes that decode images."""
    device: Device = "auto"
    """Where to compute."""
    data_root: Path | None = None
    """Where voc and coco lie (default: the environment's US3L_DATA, or data)."""

    def __post_init__(self) -> None:
        if self.save_every < 1 or self.workers < 0:
            raise UserError(f"save-every={self.save_every} must be at least 1, and workers={self.workers} at least 0")


def main(arguments: list[str]) -> int:
    return execute(parse(Detect, "detect", arguments))


def execute(command: Detect) -> int:
    from us3l.cli.data import load_model
    from us3l.console import Console
    from us3l.data.detection.sources import load
    from us3l.evaluation.detection.model import detector_of
    from us3l.evaluation.detection.training import Interrupted
    from us3l.reporting.detections import detections_figure, detections_table
    from us3l.run import Run
    from us3l.run.detections import detection_stem

    console = Console()
    net = load_model(command.run)
    net.check(command.width)
    train, test = load(command.data, command.train_split, command.test_split, command.limit, command.data_root)
    masks = wants_masks(command.masks, train)
    folder = command.out or Run(command.run).detection_folder
    place = detection_stem(folder, train.name, command.data, command.width)
    detector_file = place.with_name(f"{place.name}.pt")
    if detector_file.exists() and not (command.resume or command.overwrite):
        raise UserError(f"{detector_file} already exists: go on with it by --resume, or replace it by --overwrite")
    device = choose_device(command.device)
    tell_of_unusable(console, "training", train)
    try:
        trainer = train_with_progress(command, console, net, train, masks, detector_file, device)
    except Interrupted as stop:
        Console(stderr=True).say(f"us3l: {stop}. Go on with the same command and --resume")
        return 130
    findings = find(command, console, trainer.detector, test, "evaluating")
    tell_of_unusable(console, "test", findings.scenes)
    untrained = None
    if command.floor:
        before = detector_of(net, command.width, len(train.classes), masks, command.training, train.layout)
        untrained = find(command, console, before.to(device), test, "evaluating the untrained detector")

    write_results(command, place, train, trainer, findings, untrained)
    console.print(detections_table(findings, untrained))
    how = f"{net.family.name} {command.width:g}x, {trainer.step} steps"
    detections_figure(findings, place.with_name(f"{place.name}.png"), f"{train.name}: {how}")
    console.print(f"written: {place}.json, .png, -detections.json and .pt", highlight=False, soft_wrap=True)
    return 0


def wants_masks(asked: str, train: SceneSet) -> bool:
    if asked == "yes" and not train.has_masks:
        raise UserError(f"{train.name}: not every object of the training images has a mask; --masks no learns boxes")
    return asked != "no" and train.has_masks


def tell_of_unusable(console: Console, which: str, scenes: SceneSet) -> None:
    if scenes.empty_boxes:
        console.print(f"left out {scenes.empty_boxes} {which} boxes without area", style="yellow")
    if scenes.skipped:
        console.print(f"skipped {len(scenes.skipped)} {which} images that cannot be used:", style="yellow")
        for name in scenes.skipped[:NAMED]:
            console.print(f"  {name}", markup=False, highlight=False, soft_wrap=True)
        if len(scenes.skipped) > NAMED:
            console.print(f"  and {len(scenes.skipped) - NAMED} more")


def train_with_progress(
    command: Detect, console: Console, net: Slimmable, train: SceneSet, masks: bool, path: Path, device: torch.device
) -> Any:
    from us3l.evaluation.detection.training import train_detector
    from us3l.progress import Counting
    from us3l.stopping import stop_requests

    plan = command.training.plan(train.layout)
    kind = "Mask R-CNN" if masks else "Faster R-CNN"
    console.print(
        f"{kind} on {net.family.name} {command.width:g}x: {len(train.learnable())} images, "
        f"{len(train.classes)} classes, {plan.steps} steps of {command.training.batch}, learning rate {plan.lr:g}, "
        f"{device}",
        highlight=False,
        soft_wrap=True,
    )
    with Counting(console, "training", plan.steps) as counting, stop_requests() as asked_to_stop:

        def progress(steps: int, losses: list[float]) -> None:
            counting.so_far(len(losses), steps)
            every = max(1, steps // REPORTS)
            if len(losses) % every == 0:
                recent = sum(losses[-every:]) / every
                console.print(f"step {len(losses)}/{steps}: loss {recent:.3f}", highlight=False)

        return train_detector(
            net,
            command.width,
            train,
            masks,
            command.training,
            path,
            resume=command.resume,
            device=device,
            workers=command.workers,
            save_every=command.save_every,
            asked_to_stop=asked_to_stop,
            progress=progress,
        )


def find(command: Detect, console: Console, detector: Any, test: SceneSet, what: str) -> Findings:
    from us3l.evaluation.detection.predict import evaluate_detector
    from us3l.progress import Counting

    with Counting(console, what, len(test)) as counting:
        return evaluate_detector(detector, test, command.training.batch, command.workers, counting.more)


def write_results(
    command: Detect, place: Path, train: SceneSet, trainer: Any, findings: Findings, untrained: Findings | None
) -> None:
    import json

    from us3l.files import write_text
    from us3l.run import Run
    from us3l.run.detections import DETECTIONS, DetectionRecord, write_detection

    record = DetectionRecord(
        data=command.data,
        layout=train.layout,
        width=command.width,
        training=asdict(command.training) | asdict(trainer.plan),
        train_images=len(train.learnable()),
        test_images=len(findings.scenes),
        losses=trainer.losses,
        boxes=findings.boxes,
        masks=findings.masks,
        untrained={"boxes": untrained.boxes, "masks": untrained.masks} if untrained else None,
        skipped={"training": [*train.skipped, *trainer.skipped], "test": list(findings.scenes.skipped)},
    )
    write_detection(place.with_name(f"{place.name}.json"), record, Run(command.run))
    write_text(place.with_name(f"{place.name}{DETECTIONS}"), json.dumps(findings.detections))
