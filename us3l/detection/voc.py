"""Pascal VOC's layout: JPEGImages/NAME.jpg, Annotations/NAME.xml, and names in ImageSets/Main/SPLIT.txt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import count
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from us3l.data.catalogue import IMAGE_SUFFIXES
from us3l.data.decode import Damaged
from us3l.detection.scenes import Instance, Scene, SceneSet, with_area
from us3l.system.errors import UserError
from us3l.system.files import read_bytes

FOLDERS = ("JPEGImages", "Annotations", "ImageSets/Main")
LARGEST = 2**22  # bytes of one image's annotation
MOST_ELEMENTS = 2**17  # in it
Part = tuple[Path, str]
"""A folder of this layout and one of its splits."""


class Annotated(NamedTuple):
    """An image as its annotation has it: objects by class, their labels not known yet."""

    image: Path
    size: tuple[int, int] | None
    objects: list[tuple[str, Instance]]


def is_voc(folder: Path) -> bool:
    return all((folder / name).is_dir() for name in FOLDERS)


def voc_parts(root: Path, train: str | None, test: str | None) -> tuple[list[Part], list[Part]]:
    """The parts to train and to test on: of one folder, or of a VOCdevkit, of all its years.

    With 2007 and 2012 these are the usual ones: trainval of both years, and test of 2007.
    """
    years = [root] if is_voc(root) else sorted(folder for folder in root.glob("VOC[0-9]*") if is_voc(folder))
    splits = {year: {path.stem for path in (year / "ImageSets/Main").glob("*.txt")} for year in years}
    tested = test or ("test" if any("test" in found for found in splits.values()) else "val")
    trained = train or ("train" if tested == "val" else "trainval")

    def having(split: str) -> list[Part]:
        found = [(year, split) for year in years if split in splits[year]]
        if not found:
            known = sorted({name for names in splits.values() for name in names if "_" not in name})
            raise UserError(f"{root}: there is no ImageSets/Main/{split}.txt, only {', '.join(known) or 'nothing'}")
        return found

    return having(trained), having(tested)[:1]


def read_voc(name: str, train: Sequence[Part], test: Sequence[Part]) -> tuple[SceneSet, SceneSet]:
    """Both splits. The classes are those of the training images."""
    learned, unusable = _read(train)
    classes = tuple(sorted({kind for annotated in learned for kind, _ in annotated.objects}))
    if not classes:
        reason = f"; the first is left out because of {unusable[0]}" if unusable else ""
        raise UserError(f"{train[0][0]}: no image of {train[0][1]}.txt has an object{reason}")
    return _label(name, classes, learned, unusable), _label(name, classes, *_read(test))


def _label(name: str, classes: tuple[str, ...], images: list[Annotated], skipped: list[str]) -> SceneSet:
    labels = {kind: label for label, kind in enumerate(classes)}
    scenes, empty = [], 0
    for number, (image, size, objects) in enumerate(images, start=1):
        if unknown := [kind for kind, _ in objects if kind not in labels]:
            raise UserError(
                f"{image}: its annotation has an object of class {unknown[0]!r}, but the training images only have "
                f"{', '.join(classes[:20])}"
            )
        instances = with_area([replace(instance, label=labels[kind]) for kind, instance in objects])
        empty += len(objects) - len(instances)
        scenes.append(Scene(number, image, size, instances))
    return SceneSet(name, "voc", classes, tuple(range(1, len(classes) + 1)), tuple(scenes), tuple(skipped), empty)


def _read(parts: Iterable[Part]) -> tuple[list[Annotated], list[str]]:
    """The images of these parts, and those that cannot be used, each with the reason."""
    found, skipped = [], []
    for root, split in parts:
        images = {path.stem: path for path in sorted((root / "JPEGImages").iterdir()) if _is_image(path)}
        listing = read_bytes(root / "ImageSets/Main" / f"{split}.txt").decode(errors="replace")
        for name in filter(None, map(str.strip, listing.splitlines())):
            annotation = root / "Annotations" / f"{name}.xml"
            try:
                if name not in images:
                    raise Damaged("there is no such image in JPEGImages")
                found.append(Annotated(images[name], *read_annotation(annotation)))
            except Damaged as error:
                skipped.append(f"{annotation}: {error}")
    return found, skipped


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in IMAGE_SUFFIXES


def read_annotation(path: Path) -> tuple[tuple[int, int] | None, list[tuple[str, Instance]]]:
    """Size and objects of one image."""
    try:
        root = parse_xml(read_bytes(path, LARGEST))
    except UserError as error:
        raise Damaged(str(error)) from None
    except expat.ExpatError as error:
        raise Damaged(f"not valid XML ({error})") from None
    sizes = [_number_in(root, f"size/{side}", 0) for side in ("width", "height")]
    size = (int(sizes[0]), int(sizes[1])) if min(sizes) >= 1 else None  # some tools leave zeros
    return size, [_object(element) for element in root.findall("object")]


def parse_xml(data: bytes) -> Element:
    """The root element. Document types are refused: by them a small file can expand to any size, or name others."""
    builder, parser = TreeBuilder(), expat.ParserCreate()

    def refuse(*_: Any) -> None:
        raise Damaged("it declares a document type (DOCTYPE), which annotations have no need of")

    parser.StartDoctypeDeclHandler = refuse
    elements = count()

    def start(name: str, attributes: dict[str, str]) -> None:
        if next(elements) >= MOST_ELEMENTS:
            raise Damaged(f"it has more than {MOST_ELEMENTS:,} elements")
        builder.start(name, attributes)

    parser.StartElementHandler = start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.data
    parser.Parse(data, True)
    return builder.close()


def _object(element: Element) -> tuple[str, Instance]:
    kind = (element.findtext("name") or "").strip()
    if not kind:
        raise Damaged("an object has no name")
    left, top, right, bottom = (_number_in(element, f"bndbox/{side}") for side in ("xmin", "ymin", "xmax", "ymax"))
    # Pixels are counted from 1 and the last one belongs to the box: 1 to W is the whole width, 0 to W.
    box = (left - 1, top - 1, right - left + 1, bottom - top + 1)
    return kind, Instance(-1, box, box[2] * box[3], difficult=_number_in(element, "difficult", 0) > 0)


def _number_in(element: Element, path: str, default: float | None = None) -> float:
    text = element.findtext(path)
    if text is None and default is not None:
        return default
    try:
        value = float(text or "")
    except ValueError:
        value = float("nan")
    if not isfinite(value):
        raise Damaged(f"{path} is {text!r}, not a number")
    return value
