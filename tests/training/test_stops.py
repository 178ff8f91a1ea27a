"""Streamed runs that are stopped from outside, with the processes that read for them."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from PIL import Image

from us3l.commands.main import main
from us3l.data.sources import load

SETTINGS = (
    "--accelerator cpu --backbone vit_tiny --base 12 --heads 1 --depth 1 --patch 4 --size 8 --batch-size 8 --epochs 12 "
    "--checkpoint-every 100 --hidden 16 --predictor 16 --dim 8 --stream"
).split()
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "US3L_WORKERS": "2"}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    for number, image in enumerate(load("digits", limit=64).images):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(folder / f"{number}.png")
    return folder


def start(*arguments):
    """In a group of its own, as `timeout` and service managers start it."""
    command = [sys.executable, "-m", "us3l", "pretrain", *map(str, arguments)]
    return subprocess.Popen(
        command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def wait_for_steps(process, folder):
    metrics = folder / "metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and metrics.read_text().count('"step"') >= 12):
        time.sleep(0.05)


def readers(process):
    return Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()


def assert_readers_are_deaf(process):
    """Of those that are there: whether a run survives one that is not depends on the batches that it has by then."""
    heard = {}
    while not heard and process.poll() is None:  # each epoch has readers of its own
        for child in readers(process):
            with suppress(FileNotFoundError, ProcessLookupError):
                status = Path(f"/proc/{child}/status").read_text()
                blocked = int(status.split("SigBlk:")[1].split()[0], 16)
                heard[child] = not blocked >> (signal.SIGTERM - 1) & 1
    assert heard
    assert not any(heard.values())


def test_a_group_that_is_told_to_stop_saves_and_goes_on_to_the_same_bits(photos, tmp_path, monkeypatch):
    """The reading processes died first, and the run with them: no checkpoint, a traceback."""
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    process = start(photos, "--out", stopped, *SETTINGS)
    wait_for_steps(process, stopped)
    assert_readers_are_deaf(process)
    os.killpg(process.pid, signal.SIGTERM)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 130, output
    assert "Traceback" not in output
    assert (stopped / "checkpoints" / "last.pt").exists()
    monkeypatch.setenv("US3L_WORKERS", "2")
    assert main(["pretrain", str(photos), "--out", str(whole), *SETTINGS]) == 0
    assert main(["pretrain", "--out", str(stopped), "--resume"]) == 0
    for name in ("metrics.jsonl", "model/weights.safetensors", "model/statistics.safetensors"):
        assert (whole / name).read_bytes() == (stopped / name).read_bytes()


def test_a_reading_process_that_is_killed_is_one_line(photos, tmp_path):
    process = start(photos, "--out", tmp_path / "run", *SETTINGS)
    wait_for_steps(process, tmp_path / "run")
    while process.poll() is None:
        with suppress(FileNotFoundError, ProcessLookupError):
            for child in readers(process):
                os.kill(int(child), signal.SIGKILL)
        time.sleep(0.1)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 2, output
    assert "Traceback" not in output
    assert "processes that read images was killed" in output
