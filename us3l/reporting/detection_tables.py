"""Detections as a table, and as a picture beside the truth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle
from rich import box
from rich.table import Table

from us3l.detection.coco import decode_mask
from us3l.detection.examples import pixels
from us3l.detection.inference import Findings
from us3l.detection.scenes import Scene
from us3l.reporting.page import COLOURS
from us3l.reporting.style import INK, new_figure, save
from us3l.run.detections import AveragePrecision, Scores
from us3l.system.spacing import evenly_spaced

SHOWN = 4  # scenes
CONFIDENT = 0.5
Marked = tuple[int, Sequence[float], Any, str]
"""Label, box, segmentation if any, and what to write."""


def detections_table(findings: Findings, untrained: Findings | None = None) -> Table:
    """Return AP, AP50 and AP75 for boxes and masks: of all classes, of these untrained, and of each with objects."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("class", no_wrap=True)
    table.add_column("objects", justify="right")
    kinds = [kind for kind in ("boxes", "masks") if getattr(findings, kind)]
    for kind in kinds:
        for name in ("AP", "AP50", "AP75"):
            table.add_column(f"{kind}\n{name}", justify="right", no_wrap=True)
    counts = [0] * len(findings.scenes.classes)
    for scene in findings.scenes.scenes:
        for instance in scene.instances:
            counts[instance.label] += not (instance.crowd or instance.difficult)

    def row(name: str, count: int, scored: Findings, pick: Callable[[Scores], AveragePrecision]) -> None:
        cells = [cell for kind in kinds for cell in _numbers(pick(getattr(scored, kind)))]
        table.add_row(name, str(count), *cells)

    row("all", sum(counts), findings, lambda scores: scores.overall)
    if untrained:
        row("all, untrained", sum(counts), untrained, lambda scores: scores.overall)
    table.add_section()
    for name, count in zip(findings.scenes.classes, counts, strict=True):
        if count:
            row(name, count, findings, lambda scores, name=name: scores.classes[name])  # type: ignore[misc]
    return table


def _numbers(precision: AveragePrecision) -> list[str]:
    return ["-" if v is None else f"{v:.1f}" for v in (precision.ap, precision.ap50, precision.ap75)]


def detections_figure(findings: Findings, path: Path, title: str) -> None:
    """Draw some scenes as a PNG: the truth on the left, confident detections on the right."""
    scenes = _spread(findings.scenes.scenes)
    images = [pixels(scene) for scene in scenes]
    heights = [image.shape[0] / image.shape[1] for image in images]
    width = 11.0
    figure = new_figure(width, width / 2 * sum(heights) + 0.9, title)
    rows = figure.subplots(len(scenes), 2, squeeze=False, height_ratios=heights)
    names = findings.scenes.classes
    for (left, right), scene, image in zip(rows, scenes, images, strict=True):
        objects = [thing for thing in scene.instances if not thing.crowd]
        truth = [(thing.label, thing.box, thing.segmentation, names[thing.label]) for thing in objects]
        confident = [
            _marked(detection, findings)
            for detection in findings.detections
            if detection["image_id"] == scene.id and detection["score"] >= CONFIDENT
        ]
        _draw(left, image, truth, f"truth: {len(truth)} objects")
        _draw(right, image, confident, f"detections: {len(confident)} with a score of {CONFIDENT:g} or more")
    save(figure, path, dpi=100)


def _spread(scenes: Sequence[Scene]) -> list[Scene]:
    """Return some scenes with objects from all over the set, or without any if none has."""
    fitting = [scene for scene in scenes if scene.learnable] or list(scenes)
    return [fitting[place] for place in evenly_spaced(len(fitting), SHOWN)]


def _marked(detection: dict[str, Any], findings: Findings) -> Marked:
    label = findings.scenes.category_ids.index(detection["category_id"])
    text = f"{findings.scenes.classes[label]} {detection['score']:.2f}"
    return label, detection["bbox"], detection.get("segmentation"), text


def _draw(axes: Axes, image: np.ndarray, marks: Sequence[Marked], title: str) -> None:
    height, width, _ = image.shape
    canvas = image / 255
    for label, _, segmentation, _ in marks:
        if segmentation is not None:
            inside = decode_mask(segmentation, height, width)
            canvas[inside] = 0.5 * canvas[inside] + 0.5 * np.array(to_rgb(COLOURS[label % len(COLOURS)]))
    axes.imshow(canvas)
    for label, (x, y, w, h), _, text in marks:
        colour = COLOURS[label % len(COLOURS)]
        axes.add_patch(Rectangle((x, y), w, h, fill=False, edgecolor=colour, linewidth=1.6))
        plate = {"facecolor": colour, "edgecolor": "none", "pad": 0.8, "alpha": 0.85}
        axes.text(x, y, text, fontsize=6.5, color="white", bbox=plate, va="bottom", clip_on=True)
    axes.set_title(title, fontsize=10, loc="left", color=INK)
    axes.set_axis_off()
