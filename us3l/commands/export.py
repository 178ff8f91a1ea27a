"""`us3l export`"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from us3l.commands.parse import RunArgument, parse
from us3l.run.bundles import Format
from us3l.run.folder import Product
from us3l.width import Width


@dataclass(frozen=True)
class Export:
    """Write plain networks of some widths as files, each checked against the network it came from.

    "torch" is a program of torch.export; "onnx", "openvino" and "executorch" (for phones) run without PyTorch;
    "safetensors" is the plain network's state dict. The folder also gets a manifest, and what runs the files elsewhere.

    examples:
      us3l export runs/photos --widths 0.37
      us3l export runs/photos --widths 0.25 0.5 1 --format onnx openvino
      us3l export runs/photos --widths 0.5 --format onnx --int8
      us3l export runs/photos --widths 0.5 --format onnx --head probe
    """

    run: RunArgument
    """A run's folder, or a model's."""
    widths: tuple[Width, ...]
    """One width or several; 0.75-0.75-0.5-0.5 is a sub-network with a width for each stage."""
    format: tuple[Format, ...] = ("torch",)
    """One kind of file or several."""
    int8: bool = False
    """Quantise to INT8, calibrated on training images (ONNX and OpenVINO)."""
    head: str | None = None
    """Add the classifier that `us3l evaluate` learned: "probe", or the name of the data if there are several;
    "finetuned" takes the network that `--protocol finetune` made ("finetuned:NAME" if there are several);
    "classifier" adds that of a run that was trained with labels, at any width."""
    space: Literal["own", "shared"] = "own"
    """"shared" writes encoders whose embeddings can be compared across widths. See us3l embed."""
    data: str | None = None
    """Images to calibrate and check the files with (default: those that the run was trained on)."""
    weights: Product | None = None
    """Which weights to export: "student" for the trained network's, "teacher" for those of its momentum teacher
    (default: those of the run's model). See us3l evaluate."""
    out: Path | None = None
    """Folder for the files (default: export/ in the run's folder). Files are added to those of earlier exports."""
    overwrite: bool = False
    """Replace files of the same name."""


def main(arguments: list[str]) -> None:
    command = parse(Export, "export", arguments)
    from us3l.commands.screen import CommandScreen
    from us3l.deploy.exporting import Exported, export_run
    from us3l.reporting.deployed import exported_table
    from us3l.run import Run
    from us3l.verbs.pretraining import with_weights

    screen, exported = CommandScreen(), Exported(Path())
    run = with_weights(Run(command.run), command.weights, screen)
    settings = vars(command) | {"run": run, "formats": command.format}
    del settings["format"], settings["weights"]
    try:
        export_run(**settings, progress=screen, exported=exported)
    finally:  # what was proved is kept
        if exported.networks:
            screen.console.print(exported_table(exported))
            images = exported.networks[0][1].images
            page = ", browser.html" if "onnx" in command.format else ""
            screen.say(
                f"proved on {images}; written: {exported.folder}, with manifest.json, example.py{page} and benchmark.py"
            )
