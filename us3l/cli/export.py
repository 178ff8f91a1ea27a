"""`us3l export`"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from us3l.cli.parse import parse
from us3l.errors import UserError
from us3l.run.bundles import Entry, Format

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from us3l.data.preprocessing import Preprocessing
    from us3l.deploy.proof import Evidence, Proof


@dataclass(frozen=True)
class Export:
    """Plain networks of the widths asked for, as files, each proved to be the network it came from.

    "torch" is a program of torch.export; "onnx", "openvino" and "executorch" (for phones) run without PyTorch;
    "safetensors" is the plain network's state dict. A manifest and an example of how to run the files lie beside them.

    examples:
      us3l export runs/photos --width 0.37
      us3l export runs/photos --width 0.25 0.5 1 --format onnx openvino
      us3l export runs/photos --width 0.5 --format onnx --int8
      us3l export runs/photos --width 0.5 --format onnx --head probe
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run's folder, or a model's."""
    width: tuple[float, ...]
    """One width or several."""
    format: tuple[Format, ...] = ("torch",)
    """One kind of file or several."""
    int8: bool = False
    """Quantise to INT8, calibrated on training images (ONNX and OpenVINO)."""
    head: str | None = None
    """Add the classifier that `us3l evaluate` learned: "probe", or the name of the data if there are several."""
    data: str | None = None
    """Images to calibrate and to prove the files on (default: those that the run was trained on)."""
    out: Path | None = None
    """Folder for the files (default: export/ in the run's folder); an earlier export's is added to."""
    overwrite: bool = False
    """Replace files of the same name."""


def main(arguments: list[str]) -> int:
    command = parse(Export, "export", arguments)
    from us3l.cli.data import load_model
    from us3l.console import Console
    from us3l.data.preprocessing import Preprocessing
    from us3l.deploy.evaluated import find_accuracy, find_head
    from us3l.deploy.export import Source, export
    from us3l.progress import Counting

    console = Console()
    net = load_model(command.run)
    for width in command.width:
        net.check(width)
    heads = {width: find_head(command.run, net, width, command.head) for width in command.width if command.head}
    preprocessing = Preprocessing.of(net)
    trained_on = training_data(command.run)
    provenance = {"run": command.run.resolve().name} | ({"data": Path(trained_on).name} if trained_on else {})
    source = Source(net, preprocessing.size, provenance)
    evidence = find_evidence(console, command, trained_on, preprocessing)
    folder = command.out or command.run / "export"
    done: list[tuple[Entry, Proof]] = []
    jobs = [(width, kind) for width in command.width for kind in command.format]
    try:
        with Counting(console, "exporting", len(jobs)) as counting:
            for width, kind in jobs:
                head = heads.get(width)
                accuracy = find_accuracy(command.run, net, width, head.data if head else None)
                done.append(
                    export(source, width, kind, folder, evidence, command.int8, head, accuracy, command.overwrite)
                )
                counting.more(1)
    finally:  # what was proved is kept
        if done:
            console.print(table(done))
            where = f"proved on {done[0][1].images}; written: {folder}, with manifest.json and example.py"
            console.print(where, highlight=False, soft_wrap=True)
    return 0


def training_data(run: Path) -> str | None:
    from us3l.run import Run

    return Run(run).settings.get("data") if Run(run).started else None


def find_evidence(console: Console, command: Export, trained_on: str | None, preprocessing: Preprocessing) -> Evidence:
    """The images named, else those of the training, else noise, which is said."""
    from us3l.data.sources import load
    from us3l.deploy.proof import BATCHES, CALIBRATION, TEST, Evidence
    from us3l.progress import Screen

    data, progress = command.data or trained_on, Screen(console)
    if data is not None:
        try:
            test = load(data, "test", preprocessing.resize, TEST if command.int8 else max(BATCHES), progress)
            train = load(data, "train", preprocessing.resize, CALIBRATION, progress) if command.int8 else test
            return Evidence.of(train, test, preprocessing)
        except UserError:
            if command.data or command.int8:
                raise
    why = f"{data} is not here" if data else "the model does not say what it was trained on"
    console.print(f"proving on noise, for {why}: name images with --data", style="yellow", soft_wrap=True)
    return Evidence.noise(preprocessing.size)


def table(done: list[tuple[Entry, Proof]]) -> Table:
    from rich import box
    from rich.table import Table

    from us3l.report.tables import human

    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for header in ("file", "size", "params", "MACs", "proof"):
        shown.add_column(header, no_wrap=header != "proof")
    for entry, proof in done:
        costs = (f"{entry.bytes / 1e6:.2f} MB", human(entry.params), human(entry.macs))
        shown.add_row(next(iter(entry.files)), *costs, describe(proof))
    return shown


def describe(proof: Proof) -> str:
    """A proof in a few words."""
    if proof.difference is not None:
        return f"differs by {proof.difference:.0e}"
    accuracy = f", {proof.judge} {proof.float_accuracy:.1f} -> {proof.int8_accuracy:.1f} %" if proof.judge else ""
    return f"cosine {proof.cosine:.4f}{accuracy}"
