"""The images that exports are proved on and widths are compared by: those named, or those of the training."""

from __future__ import annotations

from us3l.data.preprocessing import Preprocessing
from us3l.data.sources import load
from us3l.deploy.proof import BATCHES, CALIBRATION, TEST, Evidence
from us3l.errors import UserError
from us3l.progress import Progress
from us3l.run import Run


def training_data(run: Run) -> str | None:
    """What a run was trained on; None of a model alone."""
    data = run.settings.get("data") if run.started else None
    return data if isinstance(data, str) else None


def find_evidence(run: Run, preprocessing: Preprocessing, int8: bool, data: str | None, progress: Progress) -> Evidence:
    """The images named, else those of the training, else noise, which is said; INT8 needs real ones."""
    name = data or training_data(run)
    if name is not None:
        try:
            test = load(name, "test", preprocessing.resize, TEST if int8 else max(BATCHES), progress)
            train = load(name, "train", preprocessing.resize, CALIBRATION, progress) if int8 else test
            return Evidence.of(train, test, preprocessing)
        except UserError:
            if data or int8:
                raise
    why = f"{name} is not here" if name else "the model does not say what it was trained on"
    progress.say(f"proving on noise, for {why}: name images by data", style="yellow")
    return Evidence.noise(preprocessing.size)
