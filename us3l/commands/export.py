"""`us3l export`: plain networks as files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from us3l.commands.command import ModelCommand, command
from us3l.deploy.deployment_settings import ExportSettings

if TYPE_CHECKING:
    from us3l.commands.screen import CommandScreen
    from us3l.deploy.exporting import Exported


@dataclass(frozen=True)
class Export(ExportSettings, ModelCommand):
    """Write plain networks of some widths as files, each checked against the network it came from.

    "torch" is a program of torch.export; "onnx", "openvino" and "executorch" (for phones) run without PyTorch;
    "safetensors" is the plain network's state dict. The folder also gets a manifest, and what runs the files elsewhere.

    examples:
      us3l export runs/photos --width 0.37
      us3l export runs/photos --width 0.25 0.5 1 --format onnx openvino
      us3l export runs/photos --width 0.5 --format onnx --int8
      us3l export runs/photos --width 0.5 --format onnx --head probe
    """


@command(Export)
def export(settings: Export) -> Exported:
    """Write plain networks of some widths as files, each checked against the network it came from.

    Returns:
        The networks that were written; `files` are those to open.
    """
    from us3l.deploy.exporting import export_run
    from us3l.run.unsaved import check_out, run_of
    from us3l.system.files import check_name
    from us3l.system.progress import progress_of

    progress = progress_of(settings.progress)
    run = run_of(settings.run)
    check_out(run, settings.out)
    check_name(settings.out or run.export_folder)
    return export_run(run, settings, progress)


def main(settings: Export, screen: CommandScreen) -> None:
    from us3l.reporting.deploy_tables import exported_table

    exported = export.with_settings(settings)
    screen.console.print(exported_table(exported))
    images = exported.networks[0][1].images
    page = ", browser.html" if "onnx" in settings.format else ""
    screen.say(f"proved on {images}; written: {exported.folder}, with manifest.json, example.py{page} and benchmark.py")
