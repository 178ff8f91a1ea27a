"""What is known of images with objects in them, before any is decoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from us3l.system.errors import UserError

Layout = Literal["voc", "coco"]
Box = tuple[float, float, float, float]
"""Left, top, width and height in pixels, the image's corner being 0, 0."""
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
