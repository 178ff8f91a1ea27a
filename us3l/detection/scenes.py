"""Images with objects in them, read from a folder of either layout, before any is decoded."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from us3l.data.datasets import NAMED_SETS, root_folder
from us3l.system.errors import UserError
from us3l.system.files import expanded

Layout = Literal["voc", "coco"]
Box = tuple[float, float, float, float]
"""Left, top, width and height in pixels, the image's corner being 0, 0."""
NAMES = ("voc", "coco")
SEED = 0  # of subsets: part of what a data set is, never of an experiment


@dataclass(frozen=True, slots=True)
class Instance:
    """One object."""

    label: int
    """Its place in the classes."""
    box: Box
    area: float
    segmentation: Any = None
    """Polygons or run lengths, as COCO writes them."""
    crowd: bool = False
    """COCO: a region with many objects. Not learned from; what is found inside it is neither right nor wrong."""
    difficult: bool = False
    """VOC: learned from, but neither right when found nor wrong when missed."""


@dataclass(frozen=True, slots=True)
class Scene:
    """One image and its objects."""

    id: int
    image: Path
    size: tuple[int, int] | None
    """Width and height as annotated, if they are."""
    instances: tuple[Instance, ...]

    @property
    def learnable(self) -> bool:
        return not all(instance.crowd for instance in self.instances)


@dataclass(frozen=True)
class SceneSet:
    """The scenes of one split."""

    name: str
    layout: Layout
    classes: tuple[str, ...]
    category_ids: tuple[int, ...]
    """The data set's own numbers of the classes, ascending."""
    scenes: tuple[Scene, ...]
    skipped: tuple[str, ...] = ()
    """Images that were left out, each with the reason."""
    empty_boxes: int = 0
    """Objects that were left out because their box has no area."""

    def __len__(self) -> int:
        return len(self.scenes)

    @property
    def has_masks(self) -> bool:
        """Whether every object has one."""
        instances = [instance for scene in self.scenes for instance in scene.instances]
        return bool(instances) and all(instance.segmentation is not None for instance in instances)

    def limited(self, count: int | None) -> SceneSet:
        """A fixed random choice of no more than `count` scenes, in their order."""
        if count is None or count >= len(self):
            return self
        if count < 1:
            raise UserError(f"limit must be at least 1, not {count}")
        chosen = np.sort(np.random.default_rng(SEED).permutation(len(self))[:count])
        return replace(self, scenes=tuple(self.scenes[index] for index in chosen))

    def learnable(self) -> SceneSet:
        """The scenes that there is something to learn from, as training takes them."""
        scenes = tuple(scene for scene in self.scenes if scene.learnable)
        if not scenes:
            raise UserError(f"{self.name}: none of the {len(self)} training images has an object to learn from")
        return replace(self, scenes=scenes)


def with_area(instances: Sequence[Instance]) -> tuple[Instance, ...]:
    return tuple(instance for instance in instances if instance.box[2] > 0 and instance.box[3] > 0)


def load(
    data: str | Path,
    train_split: str | None = None,
    test_split: str | None = None,
    limit: int | None = None,
    root: str | Path | None = None,
) -> tuple[SceneSet, SceneSet]:
    """Return the scenes to train and to test on, of "voc" or "coco" in the data root, or of a folder of either layout.

    Args:
        data: a name or a path; a string that is a name means the named set.
        train_split, test_split: other than the usual ones, such as "val2017" or "trainval".
        limit: no more than this many of each, a fixed random choice.
        root: where named sets lie (default: the environment's US3L_DATA, or ./data).
    """
    from us3l.detection.coco import choose_splits, coco_splits, read_coco
    from us3l.detection.voc import is_voc, read_voc, voc_parts

    named = data in NAMES
    folder = root_folder(root) / NAMED_SETS[str(data)].folder if named else expanded(data)
    if not os.path.isdir(folder):
        hint = (
            f"; {data} is expected there, in the layout {_layouts()}" if named else f", nor one of {', '.join(NAMES)}"
        )
        raise UserError(f"{folder}: no such folder{hint}")
    name = str(data) if named else folder.resolve().name
    if coco_splits(folder):
        train, test = read_coco(name, folder, *choose_splits(folder, train_split, test_split))
    elif is_voc(folder) or any(map(is_voc, folder.glob("VOC[0-9]*"))):
        train, test = read_voc(name, *voc_parts(folder, train_split, test_split))
    else:
        raise UserError(f"{folder}: no boxes found there; a folder is laid out as {_layouts()}")
    for part in (train, test):
        if not part.scenes:
            reason = part.skipped[0] if part.skipped else "their lists are empty"
            raise UserError(
                f"{folder}: none of the {'training' if part is train else 'test'} images is usable: {reason}"
            )
    return train.limited(limit), test.limited(limit)


def _layouts() -> str:
    from us3l.detection.voc import FOLDERS

    return (
        f"VOC's ({', '.join(FOLDERS)}, or folders VOC2007, VOC2012 that have these) or "
        "COCO's (train2017, val2017, annotations/instances_train2017.json, annotations/instances_val2017.json)"
    )
