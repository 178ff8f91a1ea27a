"""Exported files against the networks they came from: every backbone at three widths, in every format and in INT8.

    python -m benchmarks.export_proof cifar10/ [--networks resnet18 RUN ...]

A network is a backbone's name (at random weights, calibrated) or a run's folder. Real images, 64 pixels for backbones.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn import functional as F

import us3l
from us3l.data.preprocessing import Preprocessing
from us3l.data.sources import load
from us3l.deploy.example import OPENERS
from us3l.deploy.exporting import write
from us3l.deploy.formats import KINDS
from us3l.deploy.proof import BATCHES, Evidence, difference, outputs, outputs_of
from us3l.families import BACKBONES
from us3l.run.bundles import Format
from us3l.slimmable import Slimmable

WIDTHS = (1.0, 0.5, 0.37)
SIDE = 64
Row = dict[str, str | float]


def network_of(name: str) -> tuple[Slimmable, int]:
    """A slimmable network and the side of its images."""
    if name not in BACKBONES:
        net = us3l.load(name)
        return net, net.metadata["preprocessing"]["size"]
    torch.manual_seed(0)
    return us3l.create(name, image_size=SIDE) if name.startswith("vit") else us3l.create(name), SIDE


def measure(name: str, width: float, evidence_of: Callable[[int], Evidence]) -> Row:
    net, size = network_of(name)
    evidence = evidence_of(size)
    if not net.calibrated(width):
        us3l.calibrate(net, evidence.train, [width])
    network = net.carve(width)
    weights = sum(tensor.numel() * tensor.element_size() for tensor in network.state_dict().values())
    row: Row = {"network": Path(name).name, "width": width, "weights_mb": weights / 1e6}
    kinds: tuple[Format, ...] = ("torch", "onnx", "openvino")
    with TemporaryDirectory() as folder:
        for kind in kinds:
            path = Path(folder) / f"float{KINDS[kind].suffixes[0]}"
            files = write(network, kind, size, path, {}, None)
            row[f"{kind}_difference"] = largest_difference(network, files[0], evidence)
            row[f"{kind}_over_weights"] = files[-1].stat().st_size / weights - 1
        for kind in kinds[1:]:
            path = Path(folder) / f"int8{KINDS[kind].suffixes[0]}"
            files = write(network, kind, size, path, {}, evidence.train)
            row[f"{kind}_int8_cosine"] = cosine(network, files[0], evidence)
            row[f"{kind}_int8_of_float"] = files[-1].stat().st_size / (
                weights * (1 + float(row[f"{kind}_over_weights"]))
            )
    return row


def largest_difference(network: nn.Module, file: Path, evidence: Evidence) -> float:
    _, run = OPENERS[file.suffix](file)
    batches = [evidence.test[:count] for count in BATCHES]
    return max(difference(run(images.numpy()), outputs_of(network, images)) for images in batches)


def cosine(network: nn.Module, file: Path, evidence: Evidence) -> float:
    _, run = OPENERS[file.suffix](file)
    found, expected = outputs(run, evidence.test), outputs_of(network, evidence.test)
    return F.cosine_similarity(torch.from_numpy(found), torch.from_numpy(expected)).mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="images, as for us3l evaluate")
    parser.add_argument("--networks", nargs="+", default=list(BACKBONES), help="backbones and runs' folders")
    parser.add_argument("--images", type=int, default=300, help="to calibrate on, and as many to test with")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/export_proof.json"))
    chosen = parser.parse_args()

    def evidence_of(size: int) -> Evidence:
        preprocessing = Preprocessing.usual(size)
        train, test = (load(chosen.data, split, preprocessing.resize, chosen.images) for split in ("train", "test"))
        return Evidence.of(train, test, preprocessing)

    console, rows = Console(width=200), []
    for name in chosen.networks:
        for width in WIDTHS:
            console.print(f"measuring {name} at {width:g}x")
            rows.append(measure(name, width, evidence_of))
            chosen.out.write_text(json.dumps(rows, indent=2) + "\n")
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*(f"{value:.3g}" if isinstance(value, float) else value for value in row.values()))
    console.print(table)


if __name__ == "__main__":
    main()
