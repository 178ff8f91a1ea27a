import csv
import json

import pytest
from PIL import Image

from us3l.cli.compare import main
from us3l.errors import UserError


@pytest.fixture
def runs(tmp_path):
    for name, values in {"first": {1.0: 60.0, 0.5: 50.0}, "second": {1.0: 61.5, 0.25: 40.0}}.items():
        rows = [
            {"width": width, "params": int(1000 * width), "macs": int(9000 * width), "linear": value, "knn": value - 5}
            for width, value in values.items()
        ]
        (tmp_path / name / "eval").mkdir(parents=True)
        (tmp_path / name / "eval" / "photos.json").write_text(json.dumps({"train_images": 100, "widths": rows}))
    return [str(tmp_path / name) for name in ("first", "second")]


def test_accuracies_and_differences(runs, capsys):
    assert main(runs) == 0
    output = capsys.readouterr().out
    assert "linear probe" in output
    lines = [line.split() for line in output.splitlines()]
    assert ["1x", "60.0", "61.5", "+1.5"] in lines
    assert ["0.5x", "50.0"] in lines
    assert ["0.25x", "40.0"] in lines
    assert "take care" not in output
    assert main([*runs, "--metric", "knn"]) == 0
    assert "+1.5" in capsys.readouterr().out


def test_files(runs, tmp_path):
    out = [str(tmp_path / "out" / name) for name in ("a.csv", "a.json", "a.png", "a.svg")]
    assert main([*runs, "--out", *out]) == 0
    with open(out[0]) as file:
        rows = list(csv.reader(file))
    assert rows == [["width", "first", "second"], ["1.0", "60.0", "61.5"], ["0.5", "50.0", ""], ["0.25", "", "40.0"]]
    with open(out[1]) as file:
        assert json.load(file)["runs"]["second"][1]["linear"] == 40.0
    assert Image.open(out[2]).size[0] > 1000
    with pytest.raises(UserError, match=r"a\.csv already exists.*--overwrite"):
        main([*runs, "--out", *out])
    assert main([*runs, "--out", *out, "--overwrite"]) == 0
    with pytest.raises(UserError, match=r"a\.pdf: the comparison is written as"):
        main([*runs, "--out", str(tmp_path / "a.pdf")])


def test_unequal_evaluations_are_pointed_out(runs, tmp_path, capsys):
    path = tmp_path / "second" / "eval" / "photos.json"
    path.write_text(path.read_text().replace("100,", "200,"))
    assert main(runs) == 0
    assert "take care: the runs' evaluations differ in train_images" in capsys.readouterr().out


def test_runs_that_cannot_be_compared(runs, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "other" / "eval").mkdir(parents=True)
    (tmp_path / "other" / "eval" / "birds.json").write_text('{"widths": [{"width": 1.0, "params": 1, "macs": 1}]}')
    (tmp_path / "bad" / "eval").mkdir(parents=True)
    (tmp_path / "bad" / "eval" / "photos.json").write_text('{"widths": 3}')
    copy = (tmp_path / "first" / "eval" / "photos.json").read_text()
    for name in ("first", "second"):
        (tmp_path / name / "eval" / "more.json").write_text(copy)
    for arguments, message in [
        ([], "RUN RUN"),
        ([runs[0], str(tmp_path / "empty")], "empty has no evaluation: us3l evaluate"),
        ([runs[0], str(tmp_path / "other")], r"no evaluation in common \(.*birds"),
        (runs, "several evaluations in common, more, photos: choose one by --data"),
        ([*runs, "--data", "birds"], r"there is no file .*birds\.json"),
        ([runs[0], runs[0], "--data", "photos"], "given twice"),
        ([runs[0], str(tmp_path / "bad"), "--data", "photos"], "must be a list"),
        ([str(tmp_path / "other")], "no kind of accuracy in common"),
        ([*runs, "--data", "photos", "--metric", "finetuned"], "none of the runs has an accuracy by fine-tuning"),
    ]:
        with pytest.raises(UserError, match=message):
            main(arguments)
