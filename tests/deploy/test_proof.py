"""What files are proved on."""

import numpy as np
import pytest
from PIL import Image

import us3l
from us3l.data.preprocessing import Preprocessing
from us3l.data.sources import load
from us3l.deploy.proof import find_evidence
from us3l.run import Run
from us3l.system.errors import UserError
from us3l.system.progress import SILENT

PREPROCESSING = Preprocessing.usual(16)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A hundred digits in folders by their class; the brightness of a corner tells which one it is."""
    folder, digits = tmp_path_factory.mktemp("photos"), load("digits", "train", 16, limit=100)
    for number, (image, label) in enumerate(zip(digits.images, digits.labels.tolist(), strict=True)):
        pixels = image.permute(1, 2, 0).numpy().copy()
        pixels[0, 0] = number
        (folder / str(label)).mkdir(exist_ok=True)
        Image.fromarray(pixels).save(folder / str(label) / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def run(small, photos, tmp_path_factory):
    """Its classifier has learned from four fifths of the photos."""
    folder = tmp_path_factory.mktemp("run")
    small.save(folder / "model")
    us3l.evaluate(folder, photos, widths=1, name="photos", floor=False, quality=False)
    return Run(folder)


def numbers(images):
    """Which of the hundred they are."""
    mean, std = np.array(PREPROCESSING.mean), np.array(PREPROCESSING.std)
    return {round(float(value)) for value in ((images[:, :, 0, 0].numpy() * std + mean) * 255).mean(1)}


def test_int8_classifiers_are_proved_on_images_that_they_have_not_learned_from(run, photos, tmp_path):
    """Of a run that was trained on the folder of these images, they were images that the probe had learned from."""
    learned = numbers(Preprocessing.apply(PREPROCESSING, load(photos, "train", 16).images))
    for data in (None, str(photos)):
        evidence = find_evidence(run, PREPROCESSING, True, data, "photos", SILENT)
        assert len(numbers(evidence.test)) == 20
        assert not numbers(evidence.test) & learned
    assert evidence.classes == [str(digit) for digit in range(10)]
    for number, path in enumerate(sorted(photos.rglob("*.png"))):  # a folder of learned images, and of a few others
        if int(path.stem) in learned or number % 2:
            (tmp_path / "train" / path.parent.name).mkdir(parents=True, exist_ok=True)
            (tmp_path / "train" / path.parent.name / path.name).write_bytes(path.read_bytes())
    evidence = find_evidence(run, PREPROCESSING, True, str(tmp_path / "train"), "photos", SILENT)
    assert not numbers(evidence.test) & learned


def test_if_it_has_learned_from_all_of_them_it_is_an_error(run, photos, tmp_path):
    learned = numbers(Preprocessing.apply(PREPROCESSING, load(photos, "train", 16).images))
    for path in photos.rglob("*.png"):
        if int(path.stem) in learned:
            (tmp_path / path.parent.name).mkdir(exist_ok=True)
            (tmp_path / path.parent.name / path.name).write_bytes(path.read_bytes())
    with pytest.raises(UserError, match="has learned from all"):
        find_evidence(run, PREPROCESSING, True, str(tmp_path), "photos", SILENT)
