"""A small version of `python -m reliability.kills`; and the same bits with any number of workers."""

import os
import subprocess
import sys

import pytest
from PIL import Image

from us3l.commands.main import main
from us3l.data.sources import load

NETWORK = "--accelerator cpu --backbone vit_tiny --base 12 --heads 1 --depth 1 --patch 4 --size 8".split()


@pytest.mark.slow
def test_killed_runs_end_as_if_left_alone(tmp_path):
    settings = [*NETWORK, *"--batch-size 16 --images 64 --epochs 4 --hidden 512 --dim 64".split()]
    kills = "reliability.kills --kinds pretrain --stops kill --runs 2 --out".split()
    command = [sys.executable, "-m", *kills, str(tmp_path), "--", *settings]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 ended as if left alone" in done.stdout


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    for number, image in enumerate(load("digits", limit=24).images):
        Image.fromarray(image.permute(1, 2, 0).numpy()).resize((16, 12 + number % 3)).save(folder / f"{number}.png")
    return folder


def test_the_number_of_workers_changes_no_bit(photos, tmp_path, monkeypatch):
    settings = [*NETWORK, *"--batch-size 8 --epochs 2 --hidden 16 --predictor 16 --dim 8 --stream".split()]
    for workers in ("0", "1", "2"):
        monkeypatch.setenv("US3L_WORKERS", workers)
        assert main(["pretrain", str(photos), "--out", str(tmp_path / workers), *settings]) == 0
    for name in ("metrics.jsonl", "model/weights.safetensors"):
        first, *others = ((tmp_path / workers / name).read_bytes() for workers in ("0", "1", "2"))
        assert all(other == first for other in others)
