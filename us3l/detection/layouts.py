"""Finding out how a folder is laid out, and reading its scenes."""

from __future__ import annotations

import os
from pathlib import Path

from us3l.data.datasets import NAMED_SETS, root_folder
from us3l.detection.coco import choose_splits, coco_splits, read_coco
from us3l.detection.scenes import SceneSet
from us3l.detection.voc import FOLDERS, is_voc, read_voc, voc_parts
from us3l.system.errors import UserError
from us3l.system.files import expanded

NAMES = ("voc", "coco")


def load(
    data: str | Path,
    train_split: str | None = None,
    test_split: str | None = None,
    limit: int | None = None,
    root: str | Path | None = None,
) -> tuple[SceneSet, SceneSet]:
    """The scenes to train and to test on, of `"voc"` or `"coco"` in the data root, or of a folder of either layout.

    Args:
        data: a name or a path; a string that is a name means the named set.
        train_split, test_split: other than the usual ones, such as "val2017" or "trainval".
        limit: no more than this many of each, a fixed random choice.
        root: where named sets lie (default: the environment's US3L_DATA, or ./data).
    """
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
    return (
        f"VOC's ({', '.join(FOLDERS)}, or folders VOC2007, VOC2012 that have these) or "
        "COCO's (train2017, val2017, annotations/instances_train2017.json, annotations/instances_val2017.json)"
    )
