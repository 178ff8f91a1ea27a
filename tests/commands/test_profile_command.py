"""`us3l profile` as a user calls it."""

import csv
import json
import shutil

import pytest
import torch
from PIL import Image

import us3l
from tests.evaluations import write_evaluation
from us3l.commands.main import COMMANDS, main

FAST = "--repeats 1 --threads 1 --device desk".split()


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(COMMANDS, "profile", "")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    torch.manual_seed(0)
    net = us3l.create("resnet18", stem="cifar", base=8)
    us3l.calibrate(net, torch.randn(8, 3, 8, 8))
    net.metadata = {"preprocessing": {"size": 8, "mean": [0.5] * 3, "std": [0.5] * 3}}
    folder = tmp_path_factory.mktemp("models") / "model"
    net.save(folder)
    return folder


@pytest.fixture
def run(model, tmp_path):
    """A run that was evaluated at two widths, one of which is none of the paper's nine."""
    shutil.copytree(model, tmp_path / "model")
    accuracies = {width: {"linear": 60 + width, "knn": 50.0} for width in (1.0, 0.75)}
    write_evaluation(tmp_path, accuracies, "pets", data="pets")
    return tmp_path


def test_table_files_and_picture(run, capsys):
    assert main(["profile", str(run), *FAST, "--widths", "1", "0.75", "--batch", "1", "3"]) == 0
    output = capsys.readouterr().out
    assert "batch 1, 8 x 8 pixels" in output
    assert "batch 3, 8 x 8 pixels" in output
    assert "60.8" in output
    profile = json.loads((run / "profile" / "desk.json").read_text())
    assert profile["machine"]["threads"] == 1
    assert profile["machine"]["cpu"]
    assert [row["width"] for row in profile["costs"]] == us3l.load(run).widths[::-1]
    assert {(row["width"], row["batch"]) for row in profile["latencies"]} == {
        (w, b) for w in (1.0, 0.75) for b in (1, 3)
    }
    rows = list(csv.DictReader((run / "profile" / "desk.csv").open()))
    assert [row["accuracy"] for row in rows if row["width"] == "0.75"] == ["60.75", "60.75"]
    assert Image.open(run / "profile" / "desk.png").size[0] > 1000


def test_by_default_the_usual_widths_and_the_evaluated_ones_are_timed(run):
    assert main(["profile", str(run), *FAST]) == 0
    timed = {row["width"] for row in json.loads((run / "profile" / "desk.json").read_text())["latencies"]}
    net = us3l.load(run)
    assert timed == {net.canonical(w) for w in (1, 0.9, 0.8, 0.75, 0.7, 0.6, 0.5, 0.4, 0.3, 0.25)}


def test_a_model_that_was_not_evaluated(model, tmp_path):
    shutil.copytree(model, tmp_path / "model")
    assert main(["profile", str(tmp_path), *FAST, "--widths", "all"]) == 0
    profile = json.loads((tmp_path / "profile" / "desk.json").read_text())
    assert profile["agreement"] is None  # a model alone does not say what it was trained on
    assert {row["width"] for row in profile["latencies"]} == {row["width"] for row in profile["costs"]}
    assert (tmp_path / "profile" / "desk.png").exists()


def test_a_table_measured_elsewhere(run, capsys):
    table = run / "phone.csv"
    table.write_text("width,backend,batch,p50_ms,p95_ms\n1,tflite,1,21.5,30\n0.75,tflite,1,12,13\n")
    assert main(["profile", str(run), "--device-profile", str(table)]) == 0
    assert "21.5/30" in capsys.readouterr().out
    profile = json.loads((run / "profile" / "phone.json").read_text())
    assert profile["machine"] == {"file": str(table)}
    assert {row["backend"] for row in profile["latencies"]} == {"tflite"}


def test_an_earlier_profile_is_only_replaced_when_asked(run, capsys):
    earlier = run / "profile" / "desk.json"
    earlier.parent.mkdir()
    earlier.write_text("precious")
    assert main(["profile", str(run), *FAST, "--widths", "0.5"]) == 2
    assert "overwrite" in capsys.readouterr().err
    assert earlier.read_text() == "precious"
    assert main(["profile", str(run), *FAST, "--widths", "0.5", "--overwrite"]) == 0
    assert earlier.read_text() != "precious"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--widths 0.1", "outside the range"),
        ("--batch 0", "at least 1"),
        ("--repeats 0", "at least 1"),
        ("--threads 0", "threads=0"),
        ("--data dtd", "no evaluation 'dtd'"),
        ("--device-profile nowhere.csv", "cannot read nowhere.csv"),
    ],
)
def test_bad_input(run, capsys, arguments, message):
    assert main(["profile", str(run), *arguments.split()]) == 2
    *cautions, error = capsys.readouterr().err.splitlines()
    assert message in error
    assert all("does not say which weights" in line for line in cautions)  # the run's evaluation is an old one
    assert not (run / "profile").exists()


def test_what_is_not_calibrated_is_not_timed(tmp_path, capsys):
    us3l.create("resnet18", stem="cifar", base=8).save(tmp_path)
    assert main(["profile", str(tmp_path), *FAST]) == 2
    assert "not calibrated" in capsys.readouterr().err


def test_what_the_run_left_out_is_calibrated_on_its_images(tmp_path, capsys):
    net = us3l.create("resnet18", stem="cifar", base=8)
    us3l.calibrate(net, torch.randn(8, 3, 8, 8), [1.0])
    net.metadata = {"preprocessing": {"size": 8}}
    net.save(tmp_path / "model")
    (tmp_path / "config.yaml").write_text("data: digits\n")
    assert main(["profile", str(tmp_path), *FAST, "--widths", "1", "0.5"]) == 0
    assert "the run left out, on digits: 0.5x" in " ".join(capsys.readouterr().out.split())
    agreement = json.loads((tmp_path / "profile" / "desk.json").read_text())["agreement"]
    assert set(agreement["percent"]) == {"1.0", "0.5"}


def test_a_second_device_leaves_the_first_alone(run):
    assert main(["profile", str(run), *FAST, "--widths", "0.5"]) == 0
    first = (run / "profile" / "desk.json").read_text()
    (run / "phone.csv").write_text("width,backend,batch,p50_ms,p95_ms\n1,tflite,1,21.5,30\n")
    assert main(["profile", str(run), "--device-profile", str(run / "phone.csv")]) == 0
    assert (run / "profile" / "desk.json").read_text() == first
    assert (run / "profile" / "phone.csv").exists()
    assert (run / "profile" / "phone.png").exists()


def test_without_labels_widths_are_compared_with_the_full_network(model, tmp_path, capsys):
    shutil.copytree(model, tmp_path / "model")
    (tmp_path / "config.yaml").write_text("data: digits\n")
    assert main(["profile", str(tmp_path), *FAST, "--widths", "1", "0.5"]) == 0
    assert "shared with the full network, 500 images" in capsys.readouterr().out
    agreement = json.loads((tmp_path / "profile" / "desk.json").read_text())["agreement"]
    assert (agreement["data"], agreement["percent"]["1.0"]) == ("digits", 100.0)
    assert 2 < agreement["percent"]["0.5"] < 100
    assert main(["pick", str(tmp_path), "--params", "1e9"]) == 0
    assert "by agreement with the full network on digits" in capsys.readouterr().out.replace("\n", " ")
