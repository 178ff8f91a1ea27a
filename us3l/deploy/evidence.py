"""The images that exports are proved on, widths compared by, and left-out widths calibrated on."""

from __future__ import annotations

from collections.abc import Iterable

from us3l.data.preprocessing import Preprocessing
from us3l.data.sources import load, open_images
from us3l.deploy.proof import BATCHES, CALIBRATION, TEST, Evidence
from us3l.evaluation.prepare import calibrate_missing
from us3l.run import Run
from us3l.slimmable import Slimmable
from us3l.system.errors import UserError
from us3l.system.progress import Progress
from us3l.width import Width

MEMORY = 2**32  # bytes of decoded images; more are read as they are needed


def find_evidence(run: Run, preprocessing: Preprocessing, int8: bool, data: str | None, progress: Progress) -> Evidence:
    """The images named, else those of the training, else noise, with a message; INT8 needs real ones."""
    name = data or run.data
    if name is not None:
        try:
            test = load(name, "test", preprocessing.resize, TEST if int8 else max(BATCHES), progress)
            train = load(name, "train", preprocessing.resize, CALIBRATION, progress) if int8 else test
            return Evidence.of(train, test, preprocessing)
        except UserError:
            if data or int8:
                raise
    why = f"{name} is not here" if name else "the model does not say what it was trained on"
    progress.say(f"proving on noise, for {why}: name images by `data`", style="yellow")
    return Evidence.noise(preprocessing.size)


def calibrate_rest(run: Run, net: Slimmable, widths: Iterable[Width], data: str | None, progress: Progress) -> None:
    """Collect the batch-norm statistics that a run left out, in memory; the model's file stays as it is.

    Args:
        run: whose network it is.
        net: the network.
        widths: those that are wanted.
        data: images to collect them on (default: those of the training).
        progress: told which widths were without statistics.

    Raises:
        UserError: Some width has none, and there are no images.
    """
    missing = [width for width in widths if not net.calibrated(width)]
    if not missing:
        return
    name = data or run.data
    if name is None:
        raise UserError(f"width {missing[0]:g} is not calibrated: us3l.calibrate(net, images) and save the model again")
    preprocessing = Preprocessing.of(net)
    try:
        images = open_images(name, "train", preprocessing.resize, memory=MEMORY, progress=progress)
    except UserError as error:
        raise UserError(f"width {missing[0]:g} is not calibrated, and there are no images to do it: {error}") from None
    named = ", ".join(f"{width:g}x" for width in missing)
    progress.say(f"collecting batch-norm statistics of widths that the run left out, on {images.name}: {named}")
    calibrate_missing(net, images, missing, preprocessing)
