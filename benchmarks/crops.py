"""Crops from photographs at full resolution, beside crops from photographs kept at the size of the views.

python -m benchmarks.crops --out runs/crops           three seeds of each

Until November 2026 images that fit into memory were kept as centre squares of exactly the size of the views, so that a
crop of a fifth of the area was enlarged from 45 % of the side: `--keep views`. Everything else is the same here:
network, steps, seeds, evaluation. It can be stopped and started again. The figures are in OUT/results.json and
OUT/results.md.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

import us3l
from benchmarks.slim import WIDTHS, Figures, summary
from us3l.system.files import write_json

KINDS = {"full resolution": "crops", "squares of the views' size": "views"}
"""What is kept of each image, and its name as a setting."""


@dataclass(frozen=True)
class Comparison:
    """Measure what crops from full resolution are worth."""

    out: Path
    """Folder for runs and results."""
    data: Path = Path("../shared/data/photos")
    """With train/CLASS/ and test/CLASS/."""
    size: int = 64
    """Side of the views in pixels."""
    epochs: int = 30
    seeds: int = 3
    precision: str = "auto"


def measured(command: Comparison, keep: str, seed: int) -> Figures:
    """Train and evaluate, at four widths."""
    folder = command.out / "runs" / f"{keep}-{seed}"
    settings: dict[str, Any] = {"resume": True}
    if not us3l.Run(folder).started:
        network = {"recipe": "mini-photos", "method": "us3l", "size": command.size, "stem": "imagenet"}
        training = {"epochs": command.epochs, "seed": seed, "keep": keep, "precision": command.precision}
        settings = {"data": command.data, "calibrated_widths": WIDTHS, **network, **training}
    run = us3l.pretrain(out=folder, progress="lines", **settings)
    rows = us3l.evaluate(run, data=command.data, widths=WIDTHS, floor=False, quality=False).rows
    return {kind: {f"{row['width']:g}": row[kind] for row in rows} for kind in ("linear", "knn")}


def main() -> None:
    command = tyro.cli(Comparison)
    file = command.out / "results.json"
    results: dict[str, Figures] = json.loads(file.read_text()) if file.exists() else {}
    for seed in range(command.seeds):
        for kind, keep in KINDS.items():
            if (name := f"{kind}-{seed}") not in results:
                print(f"measuring {name} ...", flush=True)
                results[name] = measured(command, keep, seed)
                write_json(file, results)
                (command.out / "results.md").write_text(summary(results), encoding="utf-8")


if __name__ == "__main__":
    main()
