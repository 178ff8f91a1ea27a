import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from PIL import Image

import us3l
from tests.shapes import write_coco, write_voc
from us3l.commands.main import run as command
from us3l.detection.detector_training import load_detector
from us3l.system.errors import UserError

TINY = "--steps 2 --batch 2 --lr 0.01 --image-size 24 --channels 8 --regions 16 --workers 0 --device cpu".split()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    torch.manual_seed(0)
    net = us3l.create("resnet18", stem="cifar", base=8)
    us3l.calibrate(net, torch.randn(8, 3, 32, 32), widths=[1.0, 0.5])
    folder = tmp_path_factory.mktemp("runs") / "model"
    net.save(folder)
    return folder


@pytest.fixture
def call(model, tmp_path):
    """Calls the command with results in a folder of their own."""

    def call(*arguments):
        command("detect", [str(model), "--out", str(tmp_path / "out"), *TINY, *map(str, arguments)])

    return call


def test_boxes_of_a_folder(call, tmp_path, capsys):
    data = write_voc(tmp_path / "shapes", trainval=4, test=2)
    (data / "Annotations" / "0001.xml").write_text("<annotation")
    (data / "JPEGImages" / "0004.png").write_bytes(b"no image")
    call("--data", data, "--width", 0.5, "--floor")
    output = capsys.readouterr().out
    assert "Faster R-CNN on resnet18 0.5x: 3 images, 2 classes, 2 steps of 2" in output
    assert "skipped 1 training images" in output
    assert "skipped 1 test images" in output
    assert "AP50" in output
    place = tmp_path / "out"
    names = {path.name for path in place.iterdir()}
    assert names == {f"shapes-0.5x{end}" for end in (".json", ".png", ".pt", "-detections.json")}
    results = json.loads((place / "shapes-0.5x.json").read_text())
    assert (results["train_images"], results["test_images"]) == (3, 1)
    assert len(results["losses"]) == results["training"]["steps"] == 2
    assert set(results["boxes"]["classes"]) == {"block", "disc"}
    assert results["masks"] is None
    assert results["untrained"]["boxes"]["overall"]["ap50"] is not None
    assert "0001.xml" in results["skipped"]["training"][0]
    assert Image.open(place / "shapes-0.5x.png").size[0] > 500
    assert load_detector(place / "shapes-0.5x.pt").classes == ["block", "disc"]


def test_masks_are_learned_where_there_are_some(call, tmp_path, capsys):
    data = write_coco(tmp_path / "coco", train2017=2, val2017=1)
    call("--data", data, "--width", 0.5)
    assert "Mask R-CNN on" in capsys.readouterr().out
    results = json.loads((tmp_path / "out" / "coco-0.5x.json").read_text())
    assert results["masks"]["overall"]["ap"] is not None
    assert results["untrained"] is None
    call("--data", data, "--width", 0.5, "--masks", "no", "--overwrite")
    assert json.loads((tmp_path / "out" / "coco-0.5x.json").read_text())["masks"] is None
    with pytest.raises(UserError, match="not every object of the training images has a mask"):
        call("--data", write_voc(tmp_path / "voc", trainval=1, test=1), "--width", 0.5, "--masks", "yes")


def test_results_are_written_before_they_are_shown(call, tmp_path, monkeypatch):
    def broken(*_):
        raise BrokenPipeError

    monkeypatch.setattr("us3l.reporting.detection_tables.detections_table", broken)
    with pytest.raises(BrokenPipeError):
        call("--data", write_voc(tmp_path / "shapes", trainval=1, test=1), "--width", 0.5)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {f"shapes-0.5x{end}" for end in (".json", ".png", ".pt", "-detections.json")}


def test_results_are_not_overwritten_and_can_be_resumed(call, tmp_path):
    data = write_voc(tmp_path / "shapes", trainval=2, test=1)
    arguments = ("--data", data, "--width", 0.5)
    with pytest.raises(UserError, match=r"there is no .* to continue from"):
        call(*arguments, "--resume")
    call(*arguments)
    before = json.loads((tmp_path / "out" / "shapes-0.5x.json").read_text())
    with pytest.raises(UserError, match=r"already exists: continue it with `resume`, or replace it with `overwrite`"):
        call(*arguments)
    call(*arguments, "--resume")
    after = json.loads((tmp_path / "out" / "shapes-0.5x.json").read_text())
    assert after | {"date": before["date"]} == before
    with pytest.raises(UserError, match="seed was 0, is 5"):
        call(*arguments, "--resume", "--seed", 5)
    call(*arguments, "--overwrite", "--seed", 5)


def test_a_request_to_stop_saves(model, tmp_path):
    data = write_voc(tmp_path / "shapes", trainval=2, test=1)
    arguments = [str(model), "--data", str(data), "--width", "0.5", "--out", str(tmp_path / "out"), *TINY]
    arguments[arguments.index("--steps") + 1] = "4000"
    arguments[arguments.index("--workers") + 1] = "1"
    code = "import sys; from us3l.commands.main import main; sys.exit(main(['detect', *sys.argv[1:]]))"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments, "--save-every", "1"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        state = tmp_path / "out" / "shapes-0.5x.pt"
        while not state.exists() and process.poll() is None:
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does: to the decoding processes as well
        _, errors = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 130, errors
    assert "Continue with the same settings and --resume" in errors
    assert "Traceback" not in errors
    assert 0 < len(torch.load(state, weights_only=True)["losses"]) < 4000


def test_what_is_wrong_is_said_before_any_training(call, tmp_path):
    data = write_voc(tmp_path / "shapes", trainval=2, test=1)
    with pytest.raises(UserError, match=r"width 0\.1 is outside"):
        call("--data", data, "--width", 0.1)
    with pytest.raises(UserError, match="no such folder"):
        call("--data", tmp_path / "nowhere", "--width", 0.5)
    with pytest.raises(UserError, match=r"width 0\.75 has no batch-norm statistics"):
        call("--data", data, "--width", 0.75)
    with pytest.raises(UserError, match="save_every=0"):
        call("--data", data, "--width", 0.5, "--save-every", 0)
