"""What a run knows of its images: where they are, whatever folder a command is given in, and whether they changed."""

import json
import signal
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from us3l.commands.main import main
from us3l.run import Run
from us3l.training import loop

TINY = "--max-steps 8 --epochs 4 --batch-size 8 --base 8 --size 8 --calibration 8 --accelerator cpu".split()
TINY += "--hidden 16 --predictor 16 --dim 8".split()


def make_photos(folder: Path, seed: int, classes: tuple[str, str] = ("cats", "dogs")) -> None:
    random = np.random.default_rng(seed)
    for number in range(24):
        place = folder / classes[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 255, (9, 9, 3), dtype=np.uint8)).save(place / f"{number:02}.png")


@pytest.fixture
def stopped(tmp_path, monkeypatch) -> Path:
    """A run on the relative folder photos/ that was stopped after two steps, and the test is now somewhere else."""
    home = tmp_path / "home"
    make_photos(home / "photos", 0)
    monkeypatch.chdir(home)
    original = loop.Trainer.train_step

    def train_step(trainer):
        done = original(trainer)
        if trainer.step == 2:
            signal.getsignal(signal.SIGTERM)(signal.SIGTERM, None)
        return done

    with monkeypatch.context() as during:
        during.setattr(loop.Trainer, "train_step", train_step)
        assert main(["pretrain", "photos", "--out", "run", *TINY]) == 130
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return home / "run"


def test_a_relative_path_means_the_same_folder_from_anywhere(stopped, tmp_path, capsys):
    make_photos(tmp_path / "elsewhere" / "photos", 1, ("red", "blue"))
    settings = yaml.safe_load((stopped / "config.yaml").read_text())
    assert (settings["data"], settings["data_path"]) == ("photos", str(tmp_path / "home" / "photos"))
    assert main(["pretrain", "--out", str(stopped), "--resume"]) == 0
    assert yaml.safe_load((stopped / "config.yaml").read_text()) == settings
    assert main(["evaluate", str(stopped), "--widths", "1", "--no-floor"]) == 0
    assert json.loads((stopped / "eval" / "photos.json").read_text())["classes"] == ["cats", "dogs"]
    capsys.readouterr()
    assert main(["export", str(stopped), "--widths", "0.5", "--format", "safetensors"]) == 0
    assert "images of photos" in capsys.readouterr().out
    assert main(["pretrain", "--out", "again", "--config", str(stopped / "config.yaml"), "--max-steps", "1"]) == 0
    assert Run("again").data == str(tmp_path / "home" / "photos")


def test_the_folder_may_be_named_in_another_way_when_a_run_goes_on(stopped, capsys):
    assert main(["pretrain", "../home/photos", "--out", str(stopped), "--resume"]) == 0
    make_photos(Path("others"), 2)
    capsys.readouterr()
    assert main(["pretrain", "others", "--out", str(stopped), "--resume"]) == 2
    assert "keeps its settings" in capsys.readouterr().err


def test_a_run_that_was_moved_with_its_images_goes_on(stopped, tmp_path, monkeypatch):
    stopped.parent.rename(tmp_path / "moved")
    monkeypatch.chdir(tmp_path / "moved")
    assert main(["pretrain", "--out", "run", "--resume"]) == 0


def test_settings_of_earlier_versions_do_not_know_the_place(stopped, tmp_path, monkeypatch):
    settings = yaml.safe_load((stopped / "config.yaml").read_text())
    del settings["data_path"]
    (stopped / "config.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    assert Run(stopped).data == "photos"
    monkeypatch.chdir(tmp_path / "home")
    assert main(["pretrain", "--out", "run", "--resume"]) == 0


def test_a_run_does_not_go_on_with_replaced_images(stopped, tmp_path, capsys):
    photos = tmp_path / "home" / "photos"
    before = (stopped / "metrics.jsonl").read_bytes()

    def refused() -> None:
        assert main(["pretrain", "--out", str(stopped), "--resume"]) == 2
        assert "images have changed" in capsys.readouterr().err
        assert (stopped / "metrics.jsonl").read_bytes() == before

    def exchange(first: str, second: str) -> None:
        (photos / first).rename(photos / "x")
        (photos / second).rename(photos / first)
        (photos / "x").rename(photos / second)

    exchange("cats", "dogs")  # labels
    refused()
    exchange("cats", "dogs")
    (photos / "cats" / "00.png").rename(photos / "cats" / "99.png")  # names
    refused()
    (photos / "cats" / "99.png").rename(photos / "cats" / "00.png")
    make_photos(photos, 1)  # pixels
    refused()
