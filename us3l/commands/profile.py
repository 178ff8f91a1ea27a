"""`us3l profile`: what each width costs, and how fast it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from us3l.commands.command import ModelCommand, command
from us3l.deploy.deployment_settings import ProfileSettings

if TYPE_CHECKING:
    from us3l.commands.screen import CommandScreen
    from us3l.deploy.profiling import Profiled


@dataclass(frozen=True)
class ProfileCommand(ProfileSettings, ModelCommand):
    """Measure what each width costs and how fast it is on this device, and show its evaluated accuracy.

    Parameters, MACs, bytes and peak activation memory are computed for every distinct width; latencies are measured for
    the widths you name. If none was evaluated, widths are compared with the full network on training images.
    The results are printed as a table and written to the run's folder as profile/DEVICE.csv, .json and .png.

    examples:
      us3l profile runs/demo
      us3l profile runs/photos --widths 1 0.5 0.25 --backends torch onnx openvino --batch-size 1 8 --threads 4
      us3l profile runs/photos --device-profile phone.csv      # columns: width,backend,batch,p50_ms,p95_ms
    """


@command(ProfileCommand)
def profile(settings: ProfileCommand) -> Profiled:
    """Measure what each width costs, and how fast it is on this device. Of a network in memory nothing is kept.

    Returns:
        The profile; `rows` has a dictionary per width, backend and batch size.
    """
    from us3l.deploy.profiling import profile_run
    from us3l.run.unsaved import run_of
    from us3l.system.progress import progress_of

    return profile_run(run_of(settings.run), settings, progress_of(settings.progress))


def main(settings: ProfileCommand, screen: CommandScreen) -> None:
    from us3l.commands import report
    from us3l.reporting.deploy_tables import profile_figure, profile_table
    from us3l.run.unsaved import run_of

    profiled = profile.with_settings(settings)
    measured, picture, run = profiled.profile, profiled.files[0].with_suffix(".png"), run_of(settings.run)
    profile_figure(measured, profiled.accuracies, picture, f"{run.folder.resolve().name} on {measured.name}")
    for batch in measured.batches():
        screen.say(f"\nbatch {batch}, {measured.image_size} x {measured.image_size} pixels; p50/p95")
        screen.console.print(profile_table(measured, profiled.accuracies, batch))
    if measured.agreement:
        screen.say(f"agreement: nearest neighbours shared with the full network, {measured.agreement.images} images")
    screen.say(f"written: {picture.with_suffix('')}.csv, .json and .png")
    report.renew(run.folder)
