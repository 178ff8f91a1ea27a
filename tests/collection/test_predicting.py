import csv
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import us3l
from us3l.commands.main import main
from us3l.data.sources import load
from us3l.run import Run
from us3l.run.linear_maps import load_probes, probes_file
from us3l.runtime.runtime import Runtime
from us3l.system.errors import UserError


@pytest.fixture(scope="module")
def run(small, tmp_path_factory):
    """Evaluated at two widths, which learned classifiers."""
    folder = tmp_path_factory.mktemp("run")
    small.save(folder / "model")
    us3l.evaluate(folder, "digits", widths=(1, 0.25), train_images=200, test_images=20, floor=False, quality=False)
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Some digits as files, in folders by their class, and one that is damaged."""
    place, digits = tmp_path_factory.mktemp("photos"), load("digits", "test", 16, limit=40)
    for number, (image, label) in enumerate(zip(digits.images, digits.labels.tolist(), strict=True)):
        (place / digits.classes[label]).mkdir(exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(place / digits.classes[label] / f"{number}.png")
    (place / digits.classes[0] / "bad.png").write_bytes(b"no")
    return place


def test_evaluation_keeps_a_temperature_per_width(run, tmp_path):
    kept = load_probes(probes_file(Run(run), "digits"))
    assert set(kept.temperatures) == {1.0, 0.25}
    shutil.copytree(run, tmp_path / "run")
    more = Run(tmp_path / "run")
    us3l.evaluate(more, "digits", widths=0.5, train_images=200, test_images=20, floor=False, quality=False)
    assert load_probes(probes_file(more, "digits")).temperatures == {
        **kept.temperatures,
        0.5: load_probes(probes_file(more, "digits")).temperatures[0.5],
    }


def test_probabilities_are_those_of_the_runtime_divided_by_the_temperature(run, photos):
    found = us3l.predict(run, photos, width=0.25, threshold=0)
    runtime = Runtime(run)
    with pytest.warns(UserWarning, match="could not be used"):
        wanted = runtime.predict(photos, width=0.25, on_error="nan")
    kept = ~np.isnan(wanted.probabilities).any(1)
    np.testing.assert_allclose(found.probabilities, wanted.probabilities[kept].max(1), rtol=1e-5)
    assert [row["class"] for row in found.rows] == [label for label in wanted.labels if label is not None]
    probes = load_probes(probes_file(Run(run), "digits"))
    weight, bias = probes.linear[0.25]
    good = [photos / name for name in found.files]
    features = torch.from_numpy(runtime.embed(good, width=0.25))
    logits = (features @ weight.T + bias) / probes.temperatures[0.25]
    np.testing.assert_allclose(found.probabilities, logits.softmax(1).max(1).values, rtol=1e-3)


def test_below_the_threshold_it_abstains(run, photos, tmp_path, capsys):
    out, page = tmp_path / "classes.csv", tmp_path / "classes.html"
    every = us3l.predict(run, photos)
    threshold = float(np.median(every.probabilities))
    command = ["predict", str(run), str(photos), "--threshold", str(threshold), "--out", str(out), "--page", str(page)]
    assert main(command) == 0
    with open(out, newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["file"] for row in rows] == every.files
    assert list(rows[0]) == ["file", "class", "probability", "guess", "label"]
    assert all(row["class"] in ("", row["guess"]) for row in rows)
    assert {row["guess"] for row in rows} <= set(every.classes)
    assert all((row["class"] == "") == (sure < threshold) for row, sure in zip(rows, every.probabilities, strict=True))
    said = capsys.readouterr().out
    assert "bad.png" in said
    assert f"a class for {sum(row['class'] != '' for row in rows)} of 40 images" in said
    assert page.read_text().count("<img ") == 40
    assert "not sure" in page.read_text()
    assert main(command) == 2  # which are not replaced
    assert "already exists" in capsys.readouterr().err


def test_accuracy_against_coverage_at_every_width(run, photos, capsys):
    found = us3l.predict(run, photos, coverage=True, threshold=0)
    assert list(found.confidence) == [1.0, 0.25]
    assert found.confidence[1.0].accuracy[1.0] == pytest.approx(found.accuracy)
    assert main(["predict", str(run), str(photos), "--coverage"]) == 0
    assert "calibration error" in capsys.readouterr().out


@pytest.fixture(scope="module")
def judged(small, tmp_path_factory):
    """A run evaluated on a folder of which it learned four fifths, that folder, and a copy of it."""
    folder, digits = tmp_path_factory.mktemp("judged"), load("digits", "train", 16, limit=100)
    small.save(folder / "run" / "model")
    for number, (image, label) in enumerate(zip(digits.images, digits.labels.tolist(), strict=True)):
        (folder / "own" / digits.classes[label]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(folder / "own" / digits.classes[label] / f"{number}.png")
    us3l.evaluate(folder / "run", folder / "own", widths=1, floor=False, quality=False)
    shutil.copytree(folder / "own", folder / "copy")
    shutil.copytree(folder / "own", folder / "others")
    for number, path in enumerate(sorted((folder / "others").rglob("*.png"))):
        Image.fromarray(255 - np.asarray(Image.open(path))).save(path) if number % 4 == 0 else path.unlink()
    return folder


@pytest.mark.parametrize(("source", "split", "count"), [
    ("own", "every", 20), ("copy", "every", 20), ("own", "test", 20), ("others", "every", 25),
])  # fmt: skip
def test_only_images_that_were_not_learned_from_tell_how_good_it_is(judged, capsys, source, split, count):
    found = us3l.predict(judged / "run", judged / source, split=split, threshold=0, coverage=True)
    assert found.judged.sum() == found.confidence[1.0].images == count
    rows = [row for row, counts in zip(found.rows, found.judged, strict=True) if counts]
    right = 100 * sum(row["guess"] == row["label"] for row in rows) / count
    assert found.accuracy == pytest.approx(right) == pytest.approx(found.confidence[1.0].accuracy[1.0])
    command = ["predict", str(judged / "run"), str(judged / source), "--split", split, "--threshold", "0"]
    assert main([*command, "--coverage"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"of {count} labelled images that the classifier has not learned from" in said
    assert f"% right of {count} labelled images" in said


def test_images_that_were_all_learned_from_tell_nothing(judged, capsys):
    found = us3l.predict(judged / "run", judged / "own", split="train")
    assert found.accuracy is None
    assert main(["predict", str(judged / "run"), str(judged / "own"), "--split", "train"]) == 0
    assert "has learned from all images" in capsys.readouterr().out
    with pytest.raises(UserError, match="has learned from all images"):
        us3l.predict(judged / "run", judged / "own", split="train", coverage=True)


def test_coverage_needs_to_know_what_was_learned(judged, tmp_path):
    shutil.copytree(judged / "run", tmp_path / "run")
    record = tmp_path / "run" / "eval" / "own.json"
    record.write_text(record.read_text().replace(str(judged / "own"), str(tmp_path / "moved")))
    assert us3l.predict(tmp_path / "run", judged / "own").seen is None
    with pytest.raises(UserError, match="not known which images"):
        us3l.predict(tmp_path / "run", judged / "own", coverage=True)


def test_labels_that_it_does_not_know_are_no_mistakes(run, photos, tmp_path, capsys):
    for label in ("cat", "dog"):
        (tmp_path / "pets" / label).mkdir(parents=True)
        shutil.copy(next(photos.glob("*/0.png")), tmp_path / "pets" / label / "x.png")
    assert us3l.predict(run, tmp_path / "pets", threshold=0).accuracy is None
    assert main(["predict", str(run), str(tmp_path / "pets")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "classes of digits: 0, 1, 2, 3, 4 and 5 more" in said  # which are not what these photographs show
    assert "such as cat, are none of its classes" in said
    assert "%" not in said


def test_unless_it_is_told_it_answers_where_held_out_labels_were_right(run, photos):
    kept = load_probes(probes_file(Run(run), "digits")).thresholds
    found = us3l.predict(run, photos, width=0.25)
    assert found.threshold == kept[0.25] == pytest.approx(kept[0.25])
    assert 0 < found.threshold <= 1
    assert [row["class"] is None for row in found.rows] == [p < kept[0.25] for p in found.probabilities.tolist()]


def test_an_exported_classifier_is_calibrated_too(run, tmp_path):
    exported = us3l.export(run, 0.25, "safetensors", head="probe", out=tmp_path / "bundle", data="digits")

    probes = load_probes(probes_file(Run(run), "digits"))
    bias = load_file(exported.files[0])["head.bias"]
    torch.testing.assert_close(bias, probes.linear[0.25][1] / probes.temperatures[0.25])


def test_what_is_missing_is_told(run, photos, small, tmp_path, capsys):
    small.save(tmp_path / "model")
    (tmp_path / "empty").mkdir()
    (tmp_path / "plain").mkdir()
    shutil.copy(next(photos.glob("*/0.png")), tmp_path / "plain" / "x.png")
    for arguments, line in (
        ([tmp_path, photos], "has no classifiers"),
        ([run, photos, "--width", "0.5"], "no classifier for width 0.5"),
        ([run, photos, "--width", "0.1"], "0.1"),
        ([run, photos, "--threshold", "2"], "is not a probability"),
        ([run, tmp_path / "empty"], "no images in this folder"),
        ([run, tmp_path / "plain", "--coverage"], "has no labels that the classifier knows"),
        ([run, photos, "--out", "x.txt"], "written as .csv"),
        ([run, photos, "--head", "pets"], "pets"),
    ):
        assert main(["predict", *map(str, arguments)]) == 2
        said = capsys.readouterr().err
        assert line in said
        assert said.count("\n") == 1
    with pytest.raises(UserError, match="not both"):
        us3l.predict(run, photos, width=1, latency_ms=3)
