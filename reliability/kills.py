"""Runs killed (SIGKILL) at random moments and resumed: each must end as the one that was left alone.

python -m reliability.kills [--runs 20] [--seed 0] [--out FOLDER] [-- SETTINGS OF US3L PRETRAIN]
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import torch

from reliability.children import end_of, running, start
from us3l.cli.main import main as us3l
from us3l.run import Run
from us3l.run.checkpoints import load_checkpoint
from us3l.training import loop  # noqa: F401  so that children need not import it

SETTINGS = "--accelerator cpu --base 8 --size 8 --batch-size 16 --images 64 --epochs 8 --hidden 256 --dim 64".split()
SAME = ("config.yaml", "metrics.jsonl", "projector.safetensors", "model/model.json", "model/weights.safetensors")
"""Files that must be the same to the bit; so must all tensors of the last checkpoint."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("settings", nargs="*", default=SETTINGS)
    options = parser.parse_args()
    torch.set_num_threads(1)  # and one thread sums in one order
    folder = options.out or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    whole = Run(folder / "whole")
    began = time.monotonic()
    code = end_of(train(whole, options.settings))
    seconds = time.monotonic() - began
    if code:
        print((folder / "whole.log").read_text())
        return 1
    writing, wrong = 0, 0
    for number in range(options.runs):
        random = Random(f"{options.seed}/{number}")
        run = Run(folder / f"run{number}")
        while not kill_once(run, options.settings, random, seconds, number % 2 == 1):
            shutil.rmtree(run.folder)  # it ended before that moment: again
        half = any(run.checkpoints.glob(".*.tmp.*"))
        writing += half
        code = end_of(train(run, options.settings))
        found = differences(whole, run) if code == 0 else [f"exit code {code}"]
        wrong += bool(found)
        print(
            f"run {number}: killed{', a checkpoint half-written' if half else ''}; "
            f"resumed: {'identical' if not found else 'DIFFERS: ' + ', '.join(found)}",
            flush=True,
        )
        if not found:
            shutil.rmtree(run.folder)
    print(
        f"{options.runs} runs killed, {writing} of them while a checkpoint was written: "
        f"{options.runs - wrong} ended as if left alone"
    )
    return 1 if wrong else 0


def kill_once(run: Run, settings: list[str], random: Random, seconds: float, in_writing: bool) -> bool:
    """Start a run and kill it at a random moment, or while it writes a checkpoint; False if it ended before."""
    moment = checkpoint_being_written(run, random) if in_writing else after(random.uniform(0, 0.8 * seconds))
    return kill_when(moment, train(run, settings))


def train(run: Run, settings: list[str]) -> int:
    """Start the run, or go on with it."""
    arguments = ["pretrain", "digits", "--out", str(run.folder), "--resume", *settings]
    return start(lambda: us3l(arguments), run.folder.with_suffix(".log"))


def after(seconds: float) -> Callable[[], bool]:
    until = time.monotonic() + seconds
    return lambda: time.monotonic() > until


def checkpoint_being_written(run: Run, random: Random) -> Callable[[], bool]:
    """One of the first few that are written after the first."""
    left = [random.randint(1, 4)]
    seen: set[tuple[int, int]] = set()

    def now() -> bool:
        for path in run.checkpoints.glob(".*.tmp.last.pt"):
            try:
                file = path.stat().st_ino, os.stat(run.checkpoints / "last.pt").st_ino
            except FileNotFoundError:
                continue
            if file not in seen:
                seen.add(file)
                left[0] -= 1
        return left[0] <= 0

    return now


def kill_when(moment: Callable[[], bool], pid: int) -> bool:
    """Kill a child at a moment; False if it has ended before."""
    while running(pid):
        if moment():
            os.kill(pid, signal.SIGKILL)
            return end_of(pid) == -signal.SIGKILL
        time.sleep(0.0002)
    end_of(pid)
    return False


def differences(one: Run, other: Run) -> list[str]:
    """What of two runs is not the same to the bit."""
    names = [*SAME, *(["model/statistics.safetensors"] if (one.model / "statistics.safetensors").exists() else [])]
    found = [name for name in names if (one.folder / name).read_bytes() != (other.folder / name).read_bytes()]
    states = (load_checkpoint(run.checkpoints)[0] for run in (one, other))
    return found if same(*states) else [*found, "the last checkpoint"]


def same(one: object, other: object) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


if __name__ == "__main__":
    sys.exit(main())
