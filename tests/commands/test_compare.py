import csv
import json

import pytest
from PIL import Image

from tests.evaluations import write_evaluation
from us3l.commands.main import run as command
from us3l.system.errors import UserError


@pytest.fixture
def runs(tmp_path):
    for name, values in {"first": {1.0: 60.0, 0.5: 50.0}, "second": {1.0: 61.5, 0.25: 40.0}}.items():
        accuracies = {width: {"linear": value, "knn": value - 5} for width, value in values.items()}
        write_evaluation(tmp_path / name, accuracies, train_images=100)
    return [str(tmp_path / name) for name in ("first", "second")]


def test_accuracies_and_differences(runs, capsys):
    command("compare", runs)
    output = capsys.readouterr().out
    assert "linear probe" in output
    lines = [line.split() for line in output.splitlines()]
    assert ["1x", "60.0", "61.5", "+1.5"] in lines
    assert ["0.5x", "50.0"] in lines
    assert ["0.25x", "40.0"] in lines
    assert "take care" not in output
    command("compare", [*runs, "--metric", "knn"])
    assert "+1.5" in capsys.readouterr().out


def test_files(runs, tmp_path):
    out = [str(tmp_path / "out" / name) for name in ("a.csv", "a.json", "a.png", "a.svg")]
    command("compare", [*runs, "--out", *out])
    with open(out[0]) as file:
        rows = list(csv.reader(file))
    assert rows == [["width", "first", "second"], ["1.0", "60.0", "61.5"], ["0.5", "50.0", ""], ["0.25", "", "40.0"]]
    with open(out[1]) as file:
        assert json.load(file)["runs"]["second"][1]["linear"] == 40.0
    assert Image.open(out[2]).size[0] > 1000
    with pytest.raises(UserError, match=r"a\.csv already exists.*`overwrite`"):
        command("compare", [*runs, "--out", *out])
    command("compare", [*runs, "--out", *out, "--overwrite"])
    with pytest.raises(UserError, match=r"a\.pdf: the comparison is written as"):
        command("compare", [*runs, "--out", str(tmp_path / "a.pdf")])


def test_unequal_evaluations_are_pointed_out(runs, tmp_path, capsys):
    path = tmp_path / "second" / "eval" / "photos.json"
    path.write_text(path.read_text().replace('"train_images": 100', '"train_images": 200'))
    command("compare", runs)
    assert "take care: evaluated with different train_images (first 100, second 200)" in capsys.readouterr().out


def config(folder, seed, **recipe):
    recipe = {"seed": seed, "images": 100, "views": {"size": 32}} | recipe
    (folder / "config.yaml").write_text(json.dumps({"data": "photos", "recipe": recipe, "machine": {"devices": seed}}))


def evaluated(folder, linear):
    write_evaluation(folder, {1.0: {"linear": linear}}, data="photos", protocol="fast")


def test_seeds_are_one_column_with_mean_and_deviation(tmp_path, capsys):
    for seed, linear in enumerate((50.0, 52.0, 54.0)):
        evaluated(tmp_path / f"us3l-{seed}", linear)
        config(tmp_path / f"us3l-{seed}", seed)
    evaluated(tmp_path / "other", 55.0)
    config(tmp_path / "other", 0, epochs=3)
    folders = [str(tmp_path / name) for name in ("us3l-0", "us3l-1", "us3l-2", "other")]
    command("compare", [*folders, "--out", str(tmp_path / "a.csv"), str(tmp_path / "a.json"), str(tmp_path / "a.png")])
    output = capsys.readouterr().out
    assert "3 seeds" in output
    assert "take care" not in output
    assert ["1x", "52.0", "±", "2.0", "55.0", "+3.0"] in [line.split() for line in output.splitlines()]
    with open(tmp_path / "a.csv") as file:
        (row,) = csv.DictReader(file)
    assert row == {"width": "1.0", "us3l": "52.0", "us3l deviation": "2.0", "us3l runs": "3", "other": "55.0"}
    content = json.loads((tmp_path / "a.json").read_text())
    assert (content["runs"]["us3l"][0]["mean"], content["runs"]["us3l"][0]["deviation"]) == (52.0, 2.0)


def test_the_same_seed_twice_is_not_two_samples(tmp_path, capsys):
    for name in ("first", "second"):
        evaluated(tmp_path / name, 50.0)
        config(tmp_path / name, 0)
    command("compare", [str(tmp_path / "first"), str(tmp_path / "second")])
    output = capsys.readouterr().out
    assert "seeds" not in output
    assert "second" in output


def test_runs_on_other_images_are_pointed_out(tmp_path, capsys):
    for name, linear, images, size in (("small", 50.0, 100, 32), ("large", 60.0, 200, 64)):
        evaluated(tmp_path / name, linear)
        config(tmp_path / name, 0, images=images, views={"size": size})
    command("compare", [str(tmp_path / "small"), str(tmp_path / "large")])
    output = " ".join(capsys.readouterr().out.split())
    assert "take care: pre-trained on different numbers of images (small 100, large 200)" in output
    assert "take care: pre-trained at different sizes (small 32, large 64)" in output


def test_of_several_protocols_the_fast_one_counts(tmp_path, capsys):
    for name in ("first", "second"):
        evaluated(tmp_path / name, 50.0)
        tuned = {1.0: {"finetuned": 70.0}}
        write_evaluation(tmp_path / name, tuned, "photos-finetune", data="photos", protocol="finetune")
    command("compare", [str(tmp_path / "first"), str(tmp_path / "second")])
    output = capsys.readouterr().out
    assert "photos: top-1 accuracy by linear probe" in output
    assert "70.0" not in output


def test_runs_that_cannot_be_compared(runs, tmp_path):
    (tmp_path / "empty").mkdir()
    for name, data, accuracies in [
        ("other", "birds", {"knn": 9}),
        ("tuned", "birds", {"finetuned": 9}),
        ("free", "photos", {}),
    ]:
        write_evaluation(tmp_path / name, {1.0: accuracies}, data)
    (tmp_path / "bad" / "eval").mkdir(parents=True)
    (tmp_path / "bad" / "eval" / "photos.json").write_text('{"version": 3, "widths": 3}')
    copy = (tmp_path / "first" / "eval" / "photos.json").read_text()
    for name in ("first", "second"):
        (tmp_path / name / "eval" / "more.json").write_text(copy)
    for arguments, message in [
        ([], "say which runs to compare"),
        ([runs[0], str(tmp_path / "empty")], "empty has no evaluation: `us3l.evaluate"),
        ([runs[0], str(tmp_path / "other")], r"no evaluation in common \(.*birds"),
        (runs, "evaluations of several data sets, more, photos: say which counts"),
        ([*runs, "--data", "birds"], "has no evaluation 'birds', only more, photos"),
        ([runs[0], runs[0], "--data", "photos"], "given twice"),
        ([runs[0], str(tmp_path / "bad"), "--data", "photos"], "widths must be a list"),
        ([str(tmp_path / "other"), str(tmp_path / "tuned")], "no kind of accuracy in common"),
        ([runs[0], str(tmp_path / "free")], "free has no evaluation"),  # with labels
        ([*runs, "--data", "photos", "--metric", "finetuned"], "first has no accuracy by fine-tuning"),
    ]:
        with pytest.raises(UserError, match=message):
            command("compare", arguments)
