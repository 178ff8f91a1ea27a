"""Commands stopped at random moments and started again: each must end as the one that was left alone.

    python -m reliability.kills [--runs 20] [--kinds KIND ...] [--stops STOP ...] [--seed 0] [--out FOLDER]

A KIND is a command that writes (see `KINDS`); pretrain and detect go on by --resume. Not among them are demo, which is
pretrain, evaluate and report in one process; download and publish, which need a network; and doctor.
A STOP is "kill" (SIGKILL to the process, every second time while it writes a file) or "group" (SIGTERM to its process
group, as `timeout` and systemd send it: workers that read images get it too). After a SIGTERM no traceback may be in
what the command said.
Settings of pretrain may follow: python -m reliability.kills --kinds pretrain -- --base 8 ...
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Literal, get_args

import torch
from PIL import Image

from reliability.children import end_of, running, start
from tests.shapes import write_voc
from us3l.commands.main import main as us3l
from us3l.data.sources import load
from us3l.paper.scales import SCALES
from us3l.run import Run
from us3l.run.checkpoints import load_checkpoint
from us3l.training import loop  # noqa: F401  so that children need not import it

Stop = Literal["kill", "group"]

SETTINGS = "--accelerator cpu --base 8 --size 8 --batch-size 16 --images 64 --epochs 8 --hidden 256 --dim 64".split()
SAME = ("config.yaml", "metrics.jsonl", "projector.safetensors", "model/*")
"""Files of a run that must be the same to the bit; so must all tensors of the last checkpoint."""
DETECTOR = """--width 1 --steps 6 --save-every 2 --batch 2 --lr 0.01 --image-size 24 --channels 8 --regions 16
--device cpu""".split()
VARYING = {"date", "p50_ms", "p95_ms", "seconds"}
"""What differs between two results of the same command: times."""


@dataclass(frozen=True)
class Kind:
    """A command that writes into a run's folder."""

    command: str
    """`{run}` is the run's folder, `{photos}` a folder of images, `{boxes}` one for detection."""
    same: tuple[str, ...]
    """Patterns of the files that must come out the same: to the bit, but for times in JSON."""
    again: str = ""
    """What the command needs to go on, or to replace what the first one may have finished."""
    once: str = ""
    """A pattern of files without which it is not needed; half-written ones begin with a dot."""
    before: str | None = "pretrain"
    """The kind whose result the command starts with."""


KINDS = {
    "pretrain": Kind("pretrain digits --out {run} {settings}", SAME, "--resume", before=None),
    "stream": Kind("pretrain {photos} --out {run} --stream {settings}", SAME, "--resume", before=None),
    "evaluate": Kind("evaluate {run} --widths 1 0.5 --train-images 300", ("eval/*.json", "eval/*.safetensors")),
    "finetune": Kind(
        "evaluate {run} --widths 1 0.5 --train-images 100 --test-images 100 --protocol finetune --epochs 2",
        ("eval/*.json", "eval/*.safetensors"),
    ),
    "export": Kind("export {run} --width 1 0.5 --format onnx safetensors", ("export/*",), "--overwrite"),
    "openvino": Kind("export {run} --width 1 0.5 --format openvino", ("export/*",), "--overwrite"),
    "profile": Kind("profile {run} --widths 1 0.5 --backends torch --repeats 2", ("profile/*.json",), "--overwrite"),
    "report": Kind("report {run}", ("report.html",)),
    "detect": Kind(
        "detect {run} --data {boxes} --save-every 2 {detector}", ("detect/*.json",), "--resume", "detect/[!.]*.pt"
    ),
    "compare": Kind(
        "compare {run} --out {run}/table.csv {run}/table.json {run}/table.png {run}/table.svg",
        ("table.*",),
        "--overwrite",
        before="evaluate",
    ),
    "reproduce": Kind(
        "reproduce main-cifar100 --rows 1 --data cifar100=digits --out {run}",
        ("mini/tables/*", "mini/*/eval/*.json", "mini/*/model/*"),
        before=None,
    ),
    "embed": Kind(
        "embed {run} {photos} --width 0.5 --out {run}/vectors.parquet",
        ("vectors.parquet",),
        "--overwrite",
        "vectors.parquet",
    ),
    "find": Kind(
        "find {run}/vectors.parquet --at-least 0.9 --page {run}/alike.html",
        ("alike.html",),
        "--overwrite",
        before="embed",
    ),
    "predict": Kind(
        "predict {run} {photos} --width 0.5 --out {run}/classes.csv --page {run}/classes.html",
        ("classes.csv", "classes.html"),
        "--overwrite",
        before="evaluate",
    ),
    "search": Kind(
        "search {run} --params 30000 --name found --candidates 20 --images 64",
        ("search/found.json", "search/found.csv"),
        "--overwrite",
        "search/found.json",
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--stops", nargs="+", choices=get_args(Stop), default=get_args(Stop))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("settings", nargs="*", default=SETTINGS)
    options = parser.parse_args()
    SCALES["mini"] = replace(SCALES["mini"], widths=(1.0, 0.25), images=130, epochs=1, calibration=16, labelled=100)
    torch.set_num_threads(1)  # and one thread sums in one order
    folder = (options.out or Path(tempfile.mkdtemp())).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    place = Place(folder, options.settings)
    wrong = 0
    for kind in options.kinds:
        whole, seconds = place.left_alone(kind)
        for stop in options.stops:
            wrong += place.stopped_often(kind, stop, whole, seconds, options.runs, options.seed)
    return 1 if wrong else 0


class Place:
    """A folder for an experiment: images, a finished run, and what the stopped commands make of it."""

    def __init__(self, folder: Path, settings: list[str]) -> None:
        self.folder = folder
        self.words = {
            "photos": str(write_photos(folder / "photos")),
            "boxes": str(write_voc(folder / "boxes", trainval=6, test=2)),
            "settings": " ".join(settings),
            "detector": " ".join(DETECTOR),
        }

    def arguments(self, kind: str, run: Run, again: bool = False) -> list[str]:
        command = KINDS[kind].command
        if again and (not KINDS[kind].once or any(run.folder.glob(KINDS[kind].once))):
            command += f" {KINDS[kind].again}"
        return command.format(run=run.folder, **self.words).split()

    def begin(self, kind: str, name: str) -> Run:
        """The folder that a command starts with: none, or that of a finished run."""
        run = Run(self.folder / name / "run")  # a name that files may hold, so all have the same
        if run.folder.exists():
            shutil.rmtree(run.folder)
        run.folder.parent.mkdir(exist_ok=True)
        if before := KINDS[kind].before:
            finished = Run(self.folder / f"{before}-whole" / "run")
            if not finished.folder.exists():
                self.left_alone(before)
            shutil.copytree(finished.folder, run.folder)
        return run

    def left_alone(self, kind: str) -> tuple[Run, float]:
        run = self.begin(kind, f"{kind}-whole")
        began = time.monotonic()
        complete(self.arguments(kind, run), run)
        return run, time.monotonic() - began

    def stopped_often(self, kind: str, stop: Stop, whole: Run, seconds: float, runs: int, seed: int) -> int:
        """Print what became of each; how many did not end as the one that was left alone."""
        writing, wrong = 0, 0
        for number in range(runs):
            run = self.begin(kind, f"{kind}-{stop}{number}")
            random = Random(f"{seed}/{kind}/{stop}/{number}")
            in_writing = stop == "kill" and number % 2 == 1
            while not self.stop_once(kind, stop, run, random, seconds, in_writing):
                run = self.begin(kind, run.folder.parent.name)  # it ended before that moment: again, at another
                in_writing = False if in_writing and random.random() < 0.3 else in_writing
            half = any(run.folder.rglob(".*.tmp.*"))
            writing += half
            faults = [] if stop == "kill" else tracebacks(log_of(run))
            code = end_of(start(partial(us3l, self.arguments(kind, run, again=True)), log_of(run)))
            faults += differences(whole, run, KINDS[kind].same) if code == 0 else [f"exit code {code}"]
            wrong += bool(faults)
            state = "as if left alone" if not faults else f"WRONG: {', '.join(faults)}; see {log_of(run)}"
            print(f"{kind}, {stop} {number}: {'a file half-written; ' if half else ''}again: {state}", flush=True)
            if not faults:
                shutil.rmtree(run.folder)
        half_written = f", {writing} of them while a file was written" if stop == "kill" else ""
        print(f"{kind}: {runs} stopped ({stop}){half_written}: {runs - wrong} ended as if left alone", flush=True)
        return wrong

    def stop_once(self, kind: str, stop: Stop, run: Run, random: Random, seconds: float, in_writing: bool) -> bool:
        """Start a command and stop it at a random moment, or while it writes; False if it ended before."""
        moment = being_written(run, random) if in_writing else after(random.uniform(0, 0.8 * seconds))
        workers = {"US3L_WORKERS": "2"}
        pid = start(lambda: us3l(self.arguments(kind, run)), log_of(run), workers)
        return stop_when(moment, pid, stop)


def write_photos(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    for number, image in enumerate(load("digits", limit=64).images):
        Image.fromarray(image.permute(1, 2, 0).numpy()).resize((16, 12 + number % 3)).save(folder / f"{number}.png")
    return folder


def complete(arguments: list[str], run: Run) -> None:
    if code := end_of(start(lambda: us3l(arguments), log_of(run))):
        sys.exit(f"{log_of(run).read_text()}\nus3l {' '.join(arguments)}: exit code {code}")


def log_of(run: Run) -> Path:
    return run.folder.with_suffix(".log")


def after(seconds: float) -> Callable[[], bool]:
    until = time.monotonic() + seconds

    def now() -> bool:
        time.sleep(0.005)  # looking more often would take the time of the command
        return time.monotonic() > until

    return now


def being_written(run: Run, random: Random) -> Callable[[], bool]:
    """When one of the first few files is half-written; of checkpoints, one after the first."""
    left = random.randint(1, 4)
    seen: set[tuple[str, int]] = set()

    def now() -> bool:
        with suppress(FileNotFoundError):  # folders and files may go while they are looked at
            seen.update((path.name, path.stat().st_ino) for path in run.folder.rglob(".*.tmp.*"))
        return len(seen) >= left

    return now


def stop_when(moment: Callable[[], bool], pid: int, stop: Stop) -> bool:
    """Stop a child at a moment; False if it has ended before, or in spite of it did all of its work."""
    while running(pid):
        if moment():
            if stop == "kill":
                os.kill(pid, signal.SIGKILL)
            else:
                os.killpg(pid, signal.SIGTERM)
            return end_of(pid) != 0
        time.sleep(0.0002)
    end_of(pid)
    return False


def tracebacks(log: Path) -> list[str]:
    return ["a traceback"] if "Traceback" in log.read_text(errors="replace") else []


def differences(one: Run, other: Run, same: tuple[str, ...] = SAME) -> list[str]:
    """What of two runs is not the same."""
    paths = {path for pattern in same for path in one.folder.glob(pattern) if not path.name.startswith(".")}
    names = sorted(str(path.relative_to(one.folder)) for path in paths)
    found = [name for name in names if content(one.folder / name) != content(other.folder / name)]
    if same != SAME:
        return found if names else ["nothing was written"]
    states = (load_checkpoint(run.checkpoints)[0] for run in (one, other))
    return found if equal(*states) else [*found, "the last checkpoint"]


def content(path: Path) -> object:
    """What a file says, apart from times and the place of the run."""
    if not path.is_file():
        return None
    if path.suffix == ".html":
        return re.sub(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d", "", path.read_text().replace(str(path.parents[1]), ""))
    return timeless(json.loads(path.read_text())) if path.suffix == ".json" else path.read_bytes()


def timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: timeless(one) for key, one in value.items() if key not in VARYING}
    return [timeless(one) for one in value] if isinstance(value, list) else value


def equal(one: object, other: object) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(equal, one, other))
    return one == other


if __name__ == "__main__":
    sys.exit(main())
