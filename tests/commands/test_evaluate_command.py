"""`us3l evaluate` as a user calls it."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import us3l
from tests.made_runs import make_run
from us3l.commands.main import run as command
from us3l.data.preprocessing import Preprocessing
from us3l.run import Run
from us3l.run.evaluations import find_evaluation, usual_evaluation
from us3l.run.linear_maps import load_probes
from us3l.system.errors import UserError
from us3l.training.recipes import Network, named
from us3l.training.run_config import RunConfig


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    torch.manual_seed(0)
    net = us3l.create("resnet18", stem="cifar", base=8)
    net.metadata = {"preprocessing": {"size": 8}}
    us3l.calibrate(net, torch.randn(32, 3, 8, 8))
    folder = tmp_path_factory.mktemp("runs") / "run"
    net.save(folder / "model")
    return folder


@pytest.fixture
def run(model, tmp_path):
    return shutil.copytree(model, tmp_path / "run")


@pytest.fixture
def photos(tmp_path):
    """Two classes of many sizes and modes: RGB, grey, CMYK and RGBA; one image is damaged."""
    random = np.random.default_rng(0)
    for number in range(24):
        mode = ("RGB", "L", "CMYK", "RGBA")[number // 2 % 4]
        path = (
            tmp_path / "photos" / ("cats" if number % 2 else "dogs") / f"{number}.{'tif' if mode == 'CMYK' else 'png'}"
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 120, (9 + number, 20, 3), np.uint8) + np.uint8(120 * (number % 2))
        Image.fromarray(pixels).convert(mode).save(path)
    (tmp_path / "photos" / "cats" / "broken.jpg").write_bytes(b"no image")
    return tmp_path / "photos"


def evaluate(run, *arguments):
    command("evaluate", [str(run), *map(str, arguments)])
    return {path.name for path in (run / "eval").iterdir()}


def read(run, name):
    return json.loads((run / "eval" / f"{name}.json").read_text())


def test_results_as_table_json_pictures_and_probes(run, capsys):
    files = evaluate(run, "--data", "digits", "--train-images", 60, "--test-images", 50, "--widths", 1, 0.5)
    assert files == {"digits.json", "digits.png", "digits-costs.png", "digits.probes.safetensors"}
    output = capsys.readouterr().out
    assert "0.5x" in output
    assert "± is the 95 % interval for 50 test images" in output
    assert max(map(len, output.splitlines()[:6])) <= 80
    found = read(run, "digits")
    rows = found["widths"]
    assert [row["width"] for row in rows] == [1.0, 0.5]
    assert (found["train_images"], found["test_images"], found["protocol"]) == (60, 50, "fast")
    judged = found["scores"]["0.5"]["linear"]
    assert judged["low"] <= judged["top1"] == rows[1]["linear"] <= judged["high"]
    assert len(judged["per_class"]) == len(found["classes"]) == 10
    probes = load_probes(run / "eval" / "digits.probes.safetensors")
    assert (list(probes.linear), probes.classes, probes.data) == (
        [1.0, 0.5],
        [str(digit) for digit in range(10)],
        "digits",
    )
    assert Image.open(run / "eval" / "digits-costs.png").size[0] > 1000


def test_validation_images_instead_of_test_images(run):
    arguments = ("--data", "digits", "--train-images", 60, "--widths", 1, "--no-floor", "--no-quality")
    evaluate(run, *arguments)
    files = evaluate(run, *arguments, "--split", "validation")
    assert {"digits.json", "digits-validation.json"} <= files
    tested = [(read(run, name)["split"], read(run, name)["test_images"]) for name in ("digits", "digits-validation")]
    assert tested == [("test", 359), ("validation", 143)]
    kept = Run(run)
    for split, images in tested:
        assert find_evaluation(kept, "digits", "fast", split).test_images == images
    assert usual_evaluation(kept.evaluations).split == "test"
    evaluate(run, *arguments, "--split", "validation", "--widths", 0.5)
    assert [row["width"] for row in read(run, "digits-validation")["widths"]] == [1, 0.5]


def test_images_that_training_did_not_hold_out_are_told(tmp_path, capsys):
    run = make_run(tmp_path / "run", evaluated=False)
    arguments = ("--train-images", 60, "--widths", 1, "--no-floor", "--no-quality", "--split", "validation")
    evaluate(run.folder, *arguments)
    assert "did not hold validation images out" in capsys.readouterr().out
    with pytest.raises(UserError, match="leave out split='validation'"):
        us3l.evaluate(run, "digits", test_data="digits", split="validation")


def test_every_distinct_width(run):
    evaluate(run, "--data", "digits", "--train-images", 20, "--test-images", 20, "--widths", "all", "--no-floor")
    assert [row["width"] for row in read(run, "digits")["widths"]] == us3l.load(run / "model").widths[::-1]


def test_from_files_as_from_memory(run, photos, capsys):
    arguments = ("--data", photos, "--widths", 0.25, "--no-floor")
    evaluate(run, *arguments)
    memory = read(run, "photos")
    assert "skipped 1 damaged" in capsys.readouterr().out
    for option in (["--stream"], ["--memory-gib", "0.000001"]):
        evaluate(run, *arguments, *option)
        output = capsys.readouterr().out
        assert "read as they are needed" in output
        assert "broken.jpg" in output
        assert read(run, "photos")["scores"] == memory["scores"]
    assert Preprocessing.usual(8).resize == 8


@pytest.mark.parametrize("option", ["--stream", "--no-stream"])
def test_images_that_are_tested_and_learned_from_are_told(run, photos, capsys, option):
    """And of test images only those count that could be read."""
    train, test = photos / "train", photos / "test"
    for name in ("cats", "dogs"):
        shutil.move(photos / name, test / name)
        shutil.copytree(test / name, train / name)
        Image.new("RGB", (10, 10)).save(test / name / "new.png")
    (train / "cats" / "1.png").unlink()
    evaluate(run, "--data", photos, "--widths", 0.25, "--no-floor", "--no-quality", option)
    output = " ".join(capsys.readouterr().out.split())
    assert "95 % interval for 26 test images" in output
    found = read(run, "photos")
    assert (found["test_images"], found["scores"]["0.25"]["linear"]["images"]) == (27, 26)
    assert found["duplicates"] == 24  # with the damaged one
    assert "24 of 27 test images are training images too" in output


def test_the_floor_is_the_network_that_the_run_began_with(model, tmp_path, capsys):
    """It was one of random weights, beside which every pretrained network gains much."""
    start = shutil.copytree(model, tmp_path / "start")
    run = Run(tmp_path / "run")
    run.start(RunConfig("digits", replace(named("digits"), network=Network(base=8), init=str(start))))
    torch.manual_seed(1)
    net = us3l.create("resnet18", stem="cifar", base=8)
    net.metadata = {"preprocessing": {"size": 8}}
    us3l.calibrate(net, torch.randn(32, 3, 8, 8))
    net.save(run.model)
    arguments = ("--data", "digits", "--train-images", 60, "--test-images", 50, "--widths", 1, "--no-quality")
    evaluate(start, *arguments, "--no-floor")
    evaluate(run.folder, *arguments)
    [began], [row] = (read(folder, "digits")["widths"] for folder in (start, run.folder))
    assert (row["linear_untrained"], row["knn_untrained"]) == (began["linear"], began["knn"])
    assert (row["linear"], row["knn"]) != (began["linear"], began["knn"])
    assert "the network that the run began with" in capsys.readouterr().out
    shutil.rmtree(start)
    evaluate(run.folder, *arguments, "--overwrite")
    assert read(run.folder, "digits")["widths"][0]["linear_untrained"] is None
    assert "no floor" in capsys.readouterr().out


def test_few_labels(run, capsys):
    arguments = ("--data", "digits", "--train-images", 100, "--test-images", 30, "--widths", 0.25, "--no-floor")
    evaluate(run, *arguments, "--label-share", 0.1, 0.5, "--seeds", 2)
    shares = [(one["share"], one["images"], one["linear"]["seeds"]) for one in read(run, "digits")["few_labels"]]
    assert shares == [(0.1, 10, 2), (0.5, 50, 2)]
    assert "0.5 of them" in capsys.readouterr().out


def test_other_protocols_have_files_of_their_own(run):
    few = ("--data", "digits", "--train-images", 30, "--test-images", 20, "--widths", 0.25, "--epochs", 1)
    evaluate(run, *few, "--protocol", "paper", "--lr", 2, "--batch-size", 10)
    files = evaluate(run, *few, "--protocol", "finetune")
    assert {"digits-paper.json", "digits-paper.probes.safetensors", "digits-finetune.json"} <= files
    assert "digits-finetune.probes.safetensors" not in files
    paper, finetuned = read(run, "digits-paper"), read(run, "digits-finetune")
    assert (paper["training"]["lr"], paper["training"]["epochs"], paper["training"]["batch_size"]) == (2.0, 1, 10)
    assert paper["widths"][0]["linear"] is not None
    assert finetuned["widths"][0]["finetuned"] is not None


def test_images_without_labels(run, tmp_path, capsys):
    for number in range(70):  # 14 of them are the test split, too few
        save(tmp_path / "flat" / f"{number}.png", number)
    arguments = ("--data", tmp_path / "flat", "--widths", 1)
    assert evaluate(run, *arguments) == {"flat.json"}
    output = capsys.readouterr().out
    assert "agreement" in output
    assert "RankMe and LiDAR count" in output
    assert max(map(len, output.splitlines()[:5])) <= 80
    assert output.splitlines()[-1].endswith("flat.json")
    evaluate(run, *arguments[:-1], 0.5)  # joins
    found = read(run, "flat")
    full, half = found["widths"]
    assert (full["agreement"], full["knn"], found["scores"], found["classes"]) == (100, None, {}, None)
    assert 1 < half["rankme"] < 32
    record = us3l.Run(run).evaluations["flat"]
    assert (record.metric, record.rows[1]["lidar"]) == (None, half["lidar"])
    with pytest.raises(UserError, match="has no evaluation"):
        us3l.compare(run)
    for setting in (["--no-quality"], ["--protocol", "paper"], ["--label-share", "0.1"]):
        with pytest.raises(UserError, match="flat has no labels"):
            command("evaluate", [str(run), *map(str, arguments), *setting])


def test_quality_beside_accuracy(run, capsys):
    arguments = ("--data", "digits", "--train-images", 20, "--test-images", 60, "--widths", 0.5, "--no-floor")
    evaluate(run, *arguments)
    (row,) = us3l.Run(run).evaluations["digits"].widths
    assert row.quality.keys() == {"rankme", "lidar", "agreement"}
    assert "RankMe" in capsys.readouterr().out
    evaluate(run, *arguments, "--overwrite", "--no-quality")
    (again,) = us3l.Run(run).evaluations["digits"].widths
    assert (again.quality, again.scores) == ({}, row.scores)


def save(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), (value, 0, 0)).save(path)


def test_inputs_that_cannot_be_evaluated_say_what_to_do(run, tmp_path, monkeypatch):
    for number in range(12):
        save(tmp_path / "flat" / f"{number}.png", number)
        save(tmp_path / "alike" / "only" / f"{number}.png", number)
        save(tmp_path / "single" / f"class{number}" / "one.png", number)
        save(tmp_path / "apart" / "train" / f"class{number % 2}" / f"{number}.png", number)
        save(tmp_path / "apart" / "test" / f"class{number % 3}" / f"{number}.png", number)
    monkeypatch.chdir(tmp_path)
    for arguments, message in [
        (["--data", "flat"], "flat has no labels.*sub-folder of its own"),
        (["--data", "alike"], "alike has no labels.*at least two.*at least 50 images"),
        (["--data", "single"], "single: no images in the test split"),
        (["--data", "apart"], r"1 classes of the test images have no training image \(class2\)"),
        (["--data", "digits", "--train-images", "5"], "5 classes of the test images have no training image.*more"),
        (["--data", "flowers102", "--data-root", "sets"], r"flowers102: expected in sets/flowers-102.*download\("),
        ([], "which labelled images to use"),
    ]:
        with pytest.raises(UserError, match=message) as error:
            command("evaluate", [str(run), *arguments])
        assert "\n" not in str(error.value)
    assert not (run / "eval").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seeds", "0"], "seeds must be at least 1"),
        (["--epochs", "3"], "epochs has no meaning"),
        (["--probe", "vit"], "goes with the protocol 'paper'"),
        (["--protocol", "paper", "--label-share", "0.1"], "train_images"),
        (["--label-share", "2"], "share of the labels"),
    ],
)
def test_settings_that_do_not_fit_together(run, arguments, message):
    with pytest.raises(UserError, match=message):
        command("evaluate", [str(run), "--data", "digits", *arguments])
    assert not (run / "eval").exists()


def test_the_papers_probe_is_said_and_recorded(run, capsys):
    few = ("--data", "digits", "--train-images", 30, "--test-images", 20, "--widths", 0.25, "--epochs", 1)
    evaluate(run, *few, "--protocol", "paper")
    assert "the paper's probe for data sets other than ImageNet: SGD, learning rate 30" in capsys.readouterr().out
    assert read(run, "digits-paper")["probe"] == "transfer"
    shutil.rmtree(run / "eval")
    evaluate(run, *few, "--protocol", "paper", "--probe", "imagenet", "--widths", 0.25, 0.25)
    assert "ImageNet: LARS, learning rate 0.8" in capsys.readouterr().out
    assert (read(run, "digits-paper")["probe"], len(read(run, "digits-paper")["widths"])) == ("imagenet", 1)
