"""`us3l detect`: detection and instance segmentation on a sub-network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from us3l.commands.command import ModelCommand, command
from us3l.detection.schedule import DetectionSettings

if TYPE_CHECKING:
    from us3l.commands.screen import CommandScreen
    from us3l.detection.objects import Detected
    from us3l.run.detections import DetectionRecord


@dataclass(frozen=True)
class Detect(DetectionSettings, ModelCommand):
    """Detection and instance segmentation: Faster or Mask R-CNN with a feature pyramid, trained on one width.

    DATA is `voc` or `coco`, or a folder in the layout of either. The results are printed as a table and written to the
    run's folder as detect/NAME-WIDTHx.json and .png, with all detections (in COCO's format) and the detector itself.

    examples:
      us3l detect runs/imagenet --data voc --width 0.5
      us3l detect runs/imagenet --data coco --width 1 --schedule 0.5 --batch 8
      us3l detect runs/photos --data my-boxes/ --width 0.25 --steps 500 --batch 4 --image-size 128 --channels 32 --floor
    """


@command(Detect)
def detect(settings: Detect) -> DetectionRecord:
    """Train Faster or Mask R-CNN on the network of one width, and test it on images with boxes.

    Returns:
        The record that was kept; `rows` has a dictionary per class, that of all classes first.
    """
    return detected(settings).record


def detected(settings: Detect) -> Detected:
    """Return the results of a detector with what is needed to show them."""
    from us3l.detection.objects import detect_objects
    from us3l.run.unsaved import check_out, run_of
    from us3l.system.progress import progress_of

    run = run_of(settings.run)
    check_out(run, settings.out)
    return detect_objects(run, settings, progress_of(settings.progress))


def main(settings: Detect, screen: CommandScreen) -> None:
    from us3l.reporting.detection_tables import detections_figure, detections_table
    from us3l.run.detections import ended

    results = detected(settings)
    record, stem = results.record, results.stem
    title = f"{results.findings.scenes.name}: {record.width:g}x, {len(record.losses)} steps"
    detections_figure(results.findings, ended(stem, ".png"), title)
    screen.console.print(detections_table(results.findings, results.untrained))
    screen.say(f"written: {stem}.json, .png, -detections.json and .pt")
