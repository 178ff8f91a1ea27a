"""Which images a classifier has not learned from: only these tell how good it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from us3l.data.contents import duplicates
from us3l.data.sources import Data, ImageFiles, open_images
from us3l.data.splits import Split
from us3l.run import Run
from us3l.run.evaluations import EVALUATIONS, EvaluationRecord
from us3l.run.identity import source_of
from us3l.system.errors import UserError


def held_out(
    run: Run, evaluation: str, files: ImageFiles, data: Data, root: str | Path | None = None
) -> np.ndarray | None:
    """Return a bool per image: whether the classifiers of an evaluation have not learned from it, or its bytes.

    Args:
        run: The run.
        evaluation: Its name.
        files: The images in question.
        data: What these were opened from.
        root: Where named data sets lie.

    Returns:
        N bools; None if it is not known what they learned from, or if those images are not there any more.
    """
    if not EVALUATIONS.file(run, evaluation).exists():
        return None
    record = EVALUATIONS.read(run, evaluation)
    learned = learned_images(record, root)
    if learned is None or record.identity is None:
        return None
    if isinstance(data, str | Path) and source_of(data) == record.identity.source:
        return ~np.isin(files.chosen, learned.chosen)  # nothing has to be read
    unseen = np.ones(len(files), bool)
    unseen[[place for _, place in duplicates(learned.read_contents(), files.read_contents())]] = False
    return unseen


def learned_images(record: EvaluationRecord, root: str | Path | None) -> ImageFiles | None:
    """Return the images that an evaluation learned from, still to be read; None if they are not there any more."""
    if record.identity is None:
        return None
    splits: tuple[Split, ...] = ("learn",) if record.split == "validation" else ("train", "all")
    for split in splits:
        for limit in (None, record.train_images):
            try:
                images = open_images(record.identity.source, split, limit=limit, root=root, stream=True, labelled=True)
            except UserError:  # moved since, or never in files
                return None
            if isinstance(images, ImageFiles) and len(images) == record.train_images:
                return images
    return None
