"""`us3l detect`"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from us3l.commands.parse import RunArgument, parse
from us3l.detection.schedule import DetectionSettings
from us3l.width import Width

if TYPE_CHECKING:
    from us3l.commands.screen import CommandScreen
    from us3l.detection.objects import Detected


@dataclass(frozen=True)
class Detect:
    """Detection and instance segmentation: Faster or Mask R-CNN with a feature pyramid, trained on one width.

    DATA is `voc` or `coco`, or a folder in the layout of either. The results are printed as a table and written to the
    run's folder as detect/NAME-WIDTHx.json and .png, with all detections (in COCO's format) and the detector itself.

    examples:
      us3l detect runs/imagenet --data voc --width 0.5
      us3l detect runs/imagenet --data coco --width 1 --schedule 0.5 --batch 8
      us3l detect runs/photos --data my-boxes/ --width 0.25 --steps 500 --batch 4 --image-size 128 --channels 32 --floor
    """

    run: RunArgument
    """A run's folder, or a model's."""
    data: str
    """Images with boxes: voc, coco or a folder."""
    width: Width
    """The sub-network's width."""
    data_root: Path | None = None
    """Folder that holds voc and coco (default: the environment variable US3L_DATA, else ./data)."""
    out: Path | None = None
    """Folder for the results (default: detect/ in the run's folder)."""
    resume: bool = False
    """Continue a training that was stopped; give the same settings again."""
    overwrite: bool = False
    """Replace earlier results of this data and width."""
    settings: DetectionSettings = field(default_factory=DetectionSettings)


def main(arguments: list[str]) -> None:
    command = parse(Detect, "detect", arguments)
    from us3l.commands.screen import CommandScreen
    from us3l.detection.objects import detect_objects
    from us3l.run import Run

    screen = CommandScreen()
    show(screen, detect_objects(**vars(command) | {"run": Run(command.run)}, progress=screen))


def show(screen: CommandScreen, detected: Detected) -> None:
    from us3l.reporting.detections import detections_figure, detections_table
    from us3l.run.detections import ended

    record, stem = detected.record, detected.stem
    title = f"{detected.findings.scenes.name}: {record.width:g}x, {len(record.losses)} steps"
    detections_figure(detected.findings, ended(stem, ".png"), title)
    screen.console.print(detections_table(detected.findings, detected.untrained))
    screen.say(f"written: {stem}.json, .png, -detections.json and .pt")
