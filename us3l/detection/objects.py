"""Detection from a run to its results: train a detector on one width, evaluate it, and keep the results."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from us3l.data.sources import tell_skipped
from us3l.detection.detector import detector_of
from us3l.detection.detector_training import DetectorTrainer, train_detector
from us3l.detection.inference import Findings, evaluate_detector
from us3l.detection.scenes import SceneSet, load
from us3l.detection.schedule import DetectionSettings
from us3l.run import Run
from us3l.run.config import to_lists
from us3l.run.detections import (
    DETECTOR,
    DetectionRecord,
    detection_stem,
    ended,
    write_boxes,
    write_detection,
)
from us3l.slimmable import Slimmable
from us3l.system.devices import choose_device
from us3l.system.errors import UserError
from us3l.system.progress import SILENT, Progress
from us3l.system.stopping import stop_requests
from us3l.width import Width

REPORTS = 20  # losses told in a training


@dataclass(frozen=True)
class Detected:
    """A trained detector's results, which are written, with what is needed to show them."""

    record: DetectionRecord
    stem: Path
    """The path of its files, without their endings."""
    findings: Findings
    untrained: Findings | None = None
    """Of the same detector before training, if it was asked for."""


def detect_objects(run: Run, settings: DetectionSettings, progress: Progress = SILENT) -> Detected:
    """Train a detector on the network of one width, test it, and write its results.

    Args:
        run: Whose network it is built on.
        settings: How the detector is built, trained and tested, and on what.
        progress: Told the plan, losses, how far it is, and what cannot be used.

    Returns:
        The results.

    Raises:
        Interrupted: It was asked to stop; the training is saved.
    """
    net, data = run.network, str(settings.data)
    width = net.check(settings.width)
    train, test = load(data, settings.train_split, settings.test_split, settings.limit, settings.data_root)
    masks = wants_masks(settings.masks, train)
    stem = detection_stem(Path(settings.out) if settings.out else run.detection_folder, train.name, data, width)
    state = ended(stem, DETECTOR)
    if state.exists() and not (settings.resume or settings.overwrite):
        raise UserError(f"{state} already exists: continue it with `resume`, or replace it with `overwrite`")
    device = choose_device(settings.device)
    tell_unusable(progress, "training", train)
    trainer = train_and_tell(net, width, train, masks, settings, state, device, progress)
    findings = find(trainer.detector, test, settings, progress, "evaluating")
    tell_unusable(progress, "test", findings.scenes)
    untrained = None
    if settings.floor:
        before = detector_of(net, width, len(train.classes), masks, settings.training, train.layout).to(device)
        untrained = find(before, test, settings, progress, "evaluating the untrained detector")
    record = DetectionRecord(
        data=data,
        layout=train.layout,
        width=width,
        training=to_lists(asdict(settings.training) | asdict(trainer.plan)),
        train_images=len(train.learnable()),
        test_images=len(findings.scenes),
        losses=trainer.losses,
        boxes=findings.boxes,
        masks=findings.masks,
        untrained={"boxes": untrained.boxes, "masks": untrained.masks} if untrained else None,
        skipped={"training": [*train.skipped, *trainer.skipped], "test": list(findings.scenes.skipped)},
    )
    record = write_detection(run, stem, record)
    write_boxes(stem, findings.detections)
    return Detected(record, stem, findings, untrained)


def wants_masks(asked: str, train: SceneSet) -> bool:
    if asked == "yes" and not train.has_masks:
        raise UserError(f"{train.name}: not every object of the training images has a mask; `masks='no'` learns boxes")
    return asked != "no" and train.has_masks


def tell_unusable(progress: Progress, which: str, scenes: SceneSet) -> None:
    if scenes.empty_boxes:
        progress.say(f"left out {scenes.empty_boxes} {which} boxes without area", style="yellow")
    tell_skipped(progress, f"{which} images that cannot be used", scenes.skipped)


def train_and_tell(
    net: Slimmable,
    width: Width,
    train: SceneSet,
    masks: bool,
    settings: DetectionSettings,
    path: Path,
    device: torch.device,
    progress: Progress,
) -> DetectorTrainer:
    training, plan = settings.training, settings.training.plan(train.layout)
    progress.say(
        f"{'Mask' if masks else 'Faster'} R-CNN on {net.family.name} {width:g}x: {len(train.learnable())} images, "
        f"{len(train.classes)} classes, {plan.steps} steps of {training.batch}, learning rate {plan.lr:g}, {device}"
    )
    with progress.counting("training", plan.steps) as count, stop_requests(progress.say) as asked_to_stop:

        def tell(steps: int, losses: list[float]) -> None:
            count.so_far(len(losses), steps)
            every = max(1, steps // REPORTS)
            if len(losses) % every == 0:
                progress.say(f"step {len(losses)}/{steps}: loss {sum(losses[-every:]) / every:.3f}")

        return train_detector(
            net,
            width,
            train,
            masks,
            training,
            path,
            resume=settings.resume,
            device=device,
            workers=settings.workers,
            save_every=settings.save_every,
            asked_to_stop=asked_to_stop,
            progress=tell,
        )


def find(
    detector: torch.nn.Module, test: SceneSet, settings: DetectionSettings, progress: Progress, what: str
) -> Findings:
    with progress.counting(what, len(test)) as count:
        return evaluate_detector(detector, test, settings.training.batch, settings.workers, count.more)
