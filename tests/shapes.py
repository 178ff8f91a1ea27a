"""Made scenes for tests of detection: coloured blocks and discs on a noisy ground, in VOC's and in COCO's layout."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image

from us3l.detection.coco import encode_mask

HEIGHT, WIDTH = 48, 64
KINDS = {"block": (220, 60, 40), "disc": (40, 90, 220)}
IDS = {"block": 3, "disc": 7}  # COCO's numbers have gaps


def draw(number: int) -> tuple[np.ndarray, list[tuple[str, np.ndarray]]]:
    """Pixels, and each object's kind and mask; one in each half of the image."""
    random = np.random.default_rng(number)
    image = random.integers(90, 140, (HEIGHT, WIDTH, 3)).astype(np.uint8)
    rows, columns = np.mgrid[:HEIGHT, :WIDTH]
    objects = []
    for half in (0, 1):
        kind = list(KINDS)[(number + half) % 2]
        radius = int(random.integers(7, 12))
        y, x = int(random.integers(radius, HEIGHT - radius)), 32 * half + int(random.integers(radius, 32 - radius))
        if kind == "disc":
            mask = (rows - y) ** 2 + (columns - x) ** 2 < radius**2
        else:
            mask = (abs(rows - y) < radius) & (abs(columns - x) < radius)
        image[mask] = KINDS[kind]
        objects.append((kind, mask))
    return image, objects


def box_of(mask: np.ndarray) -> tuple[int, int, int, int]:
    """Left, top, width, height."""
    (top, *_, bottom), (left, *_, right) = (np.flatnonzero(mask.any(axis)) for axis in (1, 0))
    return int(left), int(top), int(right - left + 1), int(bottom - top + 1)


def voc_object(kind: str, box: tuple[int, int, int, int], difficult: int = 0) -> str:
    left, top, width, height = box
    edges = f"<xmin>{left + 1}</xmin><ymin>{top + 1}</ymin><xmax>{left + width}</xmax><ymax>{top + height}</ymax>"
    return f"<object><name>{kind}</name><difficult>{difficult}</difficult><bndbox>{edges}</bndbox></object>"


def voc_annotation(*objects: str) -> str:
    size = f"<size><width>{WIDTH}</width><height>{HEIGHT}</height></size>"
    return f"<annotation>{size}{''.join(objects)}</annotation>"


def write_voc(root: Path, first: int = 0, **counts: int) -> Path:
    """A folder of VOC's layout with this many images for each split; the splits of `counts` follow each other."""
    for folder in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for split, count in counts.items():
        names = []
        for number in range(first, first + count):
            image, objects = draw(number)
            names.append(f"{number:04}")
            Image.fromarray(image).save(root / "JPEGImages" / f"{names[-1]}.png")
            annotation = voc_annotation(*(voc_object(kind, box_of(mask)) for kind, mask in objects))
            (root / "Annotations" / f"{names[-1]}.xml").write_text(annotation)
        (root / "ImageSets/Main" / f"{split}.txt").write_text("\n".join(names) + "\n")
        first += count
    return root


def write_coco(root: Path, first: int = 0, **counts: int) -> Path:
    """The same of COCO's layout: blocks have polygons, discs have run lengths."""
    (root / "annotations").mkdir(parents=True, exist_ok=True)
    for split, count in counts.items():
        (root / split).mkdir()
        images, annotations = [], []
        for number in range(first, first + count):
            image, objects = draw(number)
            name = f"{number:04}.png"
            Image.fromarray(image).save(root / split / name)
            images.append({"id": 100 + number, "file_name": name, "width": WIDTH, "height": HEIGHT})
            for kind, mask in objects:
                x, y, w, h = box = box_of(mask)
                polygon = [[x, y, x + w, y, x + w, y + h, x, y + h]]
                annotations.append(
                    {
                        "id": len(annotations) + 1,
                        "image_id": 100 + number,
                        "category_id": IDS[kind],
                        "bbox": list(box),
                        "area": int(mask.sum()),
                        "iscrowd": 0,
                        "segmentation": polygon if kind == "block" else encode_mask(mask),
                    }
                )
        first += count
        categories = [{"id": number, "name": kind} for kind, number in IDS.items()]
        whole = {"images": images, "annotations": annotations, "categories": categories}
        (root / "annotations" / f"instances_{split}.json").write_text(json.dumps(whole))
    return root


def change(path: Path, **changes: object) -> None:
    """Change the first annotation of a COCO file."""
    whole = json.loads(path.read_text())
    whole["annotations"][0] |= changes
    path.write_text(json.dumps(whole))
