"""Time all networks of the folder that this file is in, on the device that it was copied to, and check their outputs.

    python benchmark.py                    # writes latencies.csv
    python benchmark.py --batch 1 8 --seconds 2

It needs numpy and the runtimes of the files (onnxruntime, openvino, torch or executorch), but not us3l; files whose
runtime is missing are left out. With Pillow, each network's outputs for check.png are compared with those that it gave
where it was exported. Back at home, `us3l profile RUN --device-profile latencies.csv --device NAME` takes the
figures over, and `us3l pick RUN --device NAME` chooses by them.
"""

import argparse
import base64
import csv
import json
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np

try:
    from example import OPENERS, About, Run, preprocess  # the file beside this one
except ImportError:  # inside us3l
    from us3l.deploy.example import OPENERS, About, Run, preprocess

HERE = Path(__file__).parent
COLUMNS = ("width", "backend", "batch", "p50_ms", "p95_ms")
WARM_UP = 3
FEWEST = 10
TOLERANCE = 1e-4
"""Largest difference of a float network's outputs, in units of the largest output where that is above 1."""
MIN_COSINE = 0.98
"""Of an INT8 network's outputs: processors round their sums in different ways."""


def networks(folder: Path) -> dict[tuple[str, str], Path]:
    """The file of each width and backend: encoders, or classifiers where there are no encoders."""
    entries = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["entries"]
    encoders = [entry for entry in entries if entry["head"] is None] or entries
    found: dict[tuple[str, str], Path] = {}
    for entry in encoders:
        backend = entry["format"] + ("-int8" if entry["int8"] else "")
        found.setdefault((str(entry["width"]), backend), folder / next(iter(entry["files"])))
    return found


def references(folder: Path) -> dict[str, np.ndarray]:
    """The outputs of each file for check.png, where it was exported; not of those by us3l before it kept them."""
    entries = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["entries"]
    kept = {next(iter(entry["files"])): entry.get("reference") for entry in entries}
    return {name: np.frombuffer(base64.b64decode(text), "<f4") for name, text in kept.items() if text}


def check(run: Run, about: About, picture: Path, expected: np.ndarray) -> tuple[bool, str]:
    """Whether a network gives the outputs of the export, and by how much they differ."""
    found = run(preprocess(picture, about))[0]
    if about["int8"]:
        cosine = float(found @ expected / (np.linalg.norm(found) * np.linalg.norm(expected)))
        return cosine >= MIN_COSINE, f"cosine {cosine:.4f} with the outputs of the export"
    difference = float(np.abs(found - expected).max() / max(1.0, np.abs(expected).max()))
    return difference <= TOLERANCE, f"differs from the outputs of the export by {difference:.0e}"


def milliseconds(run: Run, images: np.ndarray, seconds: float) -> list[float]:
    """How long one call after another takes, for some time."""
    for _ in range(WARM_UP):
        run(images)
    found: list[float] = []
    until = time.perf_counter() + seconds
    while len(found) < FEWEST or time.perf_counter() < until:
        started = time.perf_counter()
        run(images)
        found.append(1e3 * (time.perf_counter() - started))
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[1], help="images per call")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each network and batch size")
    parser.add_argument("--folder", type=Path, default=HERE, help="of the networks")
    parser.add_argument("--out", type=Path, default=None, help="the table (default: latencies.csv beside the networks)")
    asked = parser.parse_args(arguments)
    out = asked.out or asked.folder / "latencies.csv"
    known, picture, wrong = references(asked.folder), asked.folder / "check.png", []
    rows = []
    for (width, backend), path in networks(asked.folder).items():
        try:
            about, run = OPENERS[path.suffix](path)
        except (ImportError, KeyError) as error:
            print(f"{path.name}: left out ({error})")
            continue
        if path.name in known and picture.exists() and find_spec("PIL"):
            good, said = check(run, about, picture, known[path.name])
            print(f"{path.name}: {said}")
            wrong += [] if good else [path.name]
        size = about["preprocessing"]["size"]
        for batch in asked.batch:
            images = np.random.default_rng(0).normal(size=(batch, 3, size, size)).astype(np.float32)
            p50, p95 = np.percentile(milliseconds(run, images, asked.seconds), [50, 95])
            rows.append((width, backend, batch, f"{p50:.4f}", f"{p95:.4f}"))
            print(f"{path.name}, batch {batch}: p50 {p50:.3f} ms, p95 {p95:.3f} ms")
    if not rows:
        raise SystemExit("no network could be run here: install onnxruntime or another runtime of these files")
    with open(out, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([COLUMNS, *rows])
    print(f"written: {out}")
    if wrong:
        raise SystemExit(
            f"{', '.join(wrong)}: the outputs here are not those of the export; do not use it on this device"
        )


if __name__ == "__main__":
    main()
