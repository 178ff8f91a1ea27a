"""COCO's layout: SPLIT/*.jpg, and annotations/instances_SPLIT.json. Its masks, by pycocotools."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any, TypeGuard

import numpy as np

from us3l.data.decode import MOST_PIXELS
from us3l.detection.scenes import Box, Instance, Scene, SceneSet, with_area
from us3l.system.errors import UserError
from us3l.system.files import finite, parse_json, read_bytes
from us3l.system.optional import need

LARGEST = 2**32  # bytes of an annotation file; COCO's own has 2**29
LONGEST_OUTLINE = 2**22  # pixels
PREFIX = "instances_"


def coco_splits(root: Path) -> list[str]:
    """Those that have annotations."""
    return sorted(path.stem.removeprefix(PREFIX) for path in (root / "annotations").glob(f"{PREFIX}*.json"))


def choose_splits(root: Path, train: str | None, test: str | None) -> tuple[str, str]:
    """The split to train on and the one to test on, by default the first train... and the first val... or test..."""
    known = coco_splits(root)

    def choose(asked: str | None, *beginnings: str) -> str:
        fitting = [name for name in known if name == asked] if asked else [n for n in known if n.startswith(beginnings)]
        if not fitting:
            wanted = f"{PREFIX}{asked or beginnings[0] + '...'}.json"
            raise UserError(f"{root}: there is no annotations/{wanted}, only {', '.join(known)}")
        return fitting[0]

    return choose(train, "train"), choose(test, "val", "test")


def read_coco(name: str, root: Path, train: str, test: str) -> tuple[SceneSet, SceneSet]:
    learned = read_split(name, root, train)
    asked = learned if train == test else read_split(name, root, test)
    if (learned.classes, learned.category_ids) != (asked.classes, asked.category_ids):
        raise UserError(f"{root}: the categories of {PREFIX}{train}.json and {PREFIX}{test}.json are not the same")
    return learned, asked


def read_split(name: str, root: Path, split: str) -> SceneSet:
    return _Reader(root / "annotations" / f"{PREFIX}{split}.json", root / split).read(name)


class _Reader:
    """Reads one annotation file; all errors name it."""

    def __init__(self, path: Path, images: Path) -> None:
        self.path, self.images = path, images

    def read(self, name: str) -> SceneSet:
        if not self.images.is_dir():
            raise UserError(f"{self.path} is there, but not its images: there is no folder {self.images}")
        content = read_bytes(self.path, LARGEST)
        try:
            whole = parse_json(content)
        except (ValueError, MemoryError) as error:
            raise self.wrong(f"cannot be read: {error}") from None
        if not isinstance(whole, dict):
            raise self.wrong("holds no JSON object")
        kinds = dict(
            sorted((self.integer(one, "id"), self.text(one, "name")) for one in self.list(whole, "categories"))
        )
        if not kinds:
            raise self.wrong("has no categories")
        labels = {number: label for label, number in enumerate(kinds)}
        images = {self.integer(one, "id"): one for one in self.list(whole, "images")}
        sizes = {n: (self.integer(one, "width", 1), self.integer(one, "height", 1)) for n, one in images.items()}
        found: dict[int, list[Instance]] = {number: [] for number in images}
        for one in self.list(whole, "annotations"):
            number, kind = self.integer(one, "image_id"), self.integer(one, "category_id")
            if number not in images or kind not in labels:
                unknown = f"category {kind}" if number in images else f"image {number}"
                raise self.wrong(f"annotation {one.get('id')} is of {unknown}, which is not in the file")
            found[number].append(self.instance(one, labels[kind], sizes[number]))
        scenes, skipped = [], []
        for number, image in images.items():
            path = self.images / self.file_name(image)
            if sizes[number][0] * sizes[number][1] > MOST_PIXELS:
                skipped.append(f"{path}: {sizes[number][0]}x{sizes[number][1]} are more than {MOST_PIXELS:,} pixels")
            elif os.path.isfile(path):  # False also for names that no system allows
                scenes.append(Scene(number, path, sizes[number], with_area(found[number])))
            else:
                skipped.append(f"{path}: there is no such image")
        if not scenes:
            raise self.wrong(f"lists {len(images)} images, of which none is in {self.images}")
        empty = sum(len(instances) - len(with_area(instances)) for instances in found.values())
        return SceneSet(name, "coco", tuple(kinds.values()), tuple(kinds), tuple(scenes), tuple(skipped), empty)

    def instance(self, one: dict[str, Any], label: int, size: tuple[int, int]) -> Instance:
        box = one.get("bbox")
        if not _numbers(box) or len(box) != 4:
            raise self.wrong(f"annotation {one.get('id')} has the bbox {box!r:.50}, not four numbers")
        area, crowd = one.get("area", box[2] * box[3]), one.get("iscrowd", 0)
        if not _numbers([area]) or crowd not in (0, 1):
            raise self.wrong(f"annotation {one.get('id')} has the area {area!r:.50} and iscrowd {crowd!r:.50}")
        segmentation = one.get("segmentation") or None
        if segmentation is not None and not _polygons(segmentation, size) and not _run_lengths(segmentation, size):
            raise self.wrong(
                f"annotation {one.get('id')} has a segmentation that is neither polygons nor run lengths of its image"
            )
        return Instance(label, as_box(box), float(area), segmentation, bool(crowd))

    def file_name(self, image: dict[str, Any]) -> str:
        name = PurePosixPath(self.text(image, "file_name"))
        if name.is_absolute() or ".." in name.parts:
            raise self.wrong(f"names an image outside its folder: {name}")
        return str(name)

    def list(self, whole: dict[str, Any], key: str) -> list[dict[str, Any]]:
        value = whole.get(key)
        if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
            raise self.wrong(f"has no list of {key}")
        return value

    def integer(self, one: dict[str, Any], key: str, least: int = -(2**63)) -> int:
        value = one.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**63:
            raise self.wrong(f"has an entry whose {key} is {value!r:.50}: {one!r:.80}")
        return value

    def text(self, one: dict[str, Any], key: str) -> str:
        value = one.get(key)
        if not isinstance(value, str) or not value or "\0" in value:
            raise self.wrong(f"has an entry whose {key} is {value!r:.50}: {one!r:.80}")
        return value

    def wrong(self, what: str) -> UserError:
        return UserError(f"{self.path} {what}")


def as_box(values: list[float]) -> Box:
    left, top, width, height = values
    return left, top, width, height


def _numbers(values: Any) -> TypeGuard[list[float]]:
    return isinstance(values, list) and all(finite(value) for value in values)


def _polygons(segmentation: Any, size: tuple[int, int]) -> bool:
    """Whether these are polygons near their image. Far from it, drawing them would take any amount of memory."""
    far = 2 * max(size)
    return isinstance(segmentation, list) and all(
        _numbers(points)
        and len(points) >= 6
        and len(points) % 2 == 0
        and all(-far <= p <= far for p in points)
        and _short(points, far)
        for points in segmentation
    )


def _short(points: list[float], far: int) -> bool:
    """Whether an outline is no longer than any object's; drawing takes memory for each pixel of its length."""
    if len(points) * far <= LONGEST_OUTLINE:
        return True
    x, y = points[::2], points[1::2]
    ends = zip(x, x[1:] + x[:1], y, y[1:] + y[:1], strict=True)
    return sum(max(abs(left - right), abs(top - bottom)) for left, right, top, bottom in ends) <= LONGEST_OUTLINE


def _run_lengths(segmentation: Any, size: tuple[int, int]) -> bool:
    """Whether these are run lengths of just their image, written out or compressed."""
    if not isinstance(segmentation, dict) or segmentation.get("size") != [size[1], size[0]]:
        return False
    counts = segmentation.get("counts")
    if isinstance(counts, str):
        try:
            counts = run_lengths(counts)
        except ValueError:
            return False
    if not isinstance(counts, list) or not all(type(number) is int and number >= 0 for number in counts):
        return False
    return sum(counts) == size[0] * size[1]


def coco_masks() -> ModuleType:
    """Return the module of pycocotools, or say what to install."""
    return need("pycocotools.mask", "detection")


def decode_mask(segmentation: Any, height: int, width: int) -> np.ndarray:
    """Return polygons or run lengths as a bool for each pixel, H x W."""
    tools = coco_masks()
    parts = tools.frPyObjects(segmentation, height, width) if _uncompressed(segmentation) else segmentation
    return tools.decode(tools.merge(parts) if isinstance(parts, list) else parts) == 1


def run_lengths(text: str) -> list[int]:
    """Return what COCO's compressed form says; raise a `ValueError` if it says nothing. pycocotools trusts it blindly.

    >>> run_lengths("04"), run_lengths("52203")
    ([0, 4], [5, 2, 2, 2, 5])
    """
    lengths: list[int] = []
    number = shift = 0
    for letter in text:
        bits = ord(letter) - 48
        if not 0 <= bits < 64 or shift > 35:
            raise ValueError(f"{letter!r} does not belong to run lengths")
        number |= (bits & 31) << shift
        shift += 5
        if not bits & 32:  # the last of this number, of which bit 16 is the sign
            number -= (bits & 16) << (shift - 4)
            lengths.append(number + (lengths[-2] if len(lengths) > 2 else 0))
            number = shift = 0
    if shift:
        raise ValueError("the last run length is cut short")
    return lengths


def _uncompressed(segmentation: Any) -> bool:
    return isinstance(segmentation, list) or isinstance(segmentation["counts"], list)


def encode_mask(mask: np.ndarray) -> dict[str, Any]:
    """Return a mask of bools, H x W, as run lengths that JSON can hold."""
    encoded = coco_masks().encode(np.asfortranarray(mask, np.uint8))
    return {"size": list(encoded["size"]), "counts": encoded["counts"].decode()}
