"""`us3l profile`"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from us3l.commands.parse import RunArgument, parse
from us3l.width import Width


@dataclass(frozen=True)
class ProfileCommand:
    """Measure what each width costs and how fast it is on this device, and show its evaluated accuracy.

    Parameters, MACs, bytes and peak activation memory are computed for every distinct width; latencies are measured for
    the widths you name. If none was evaluated, widths are compared with the full network on training images.
    The results are printed as a table and written to the run's folder as profile/DEVICE.csv, .json and .png.

    examples:
      us3l profile runs/demo
      us3l profile runs/photos --widths 1 0.5 0.25 --backends torch onnx openvino --batch-size 1 8 --threads 4
      us3l profile runs/photos --device-profile phone.csv      # columns: width,backend,batch,p50_ms,p95_ms
    """

    run: RunArgument
    """A run's folder, or a model's."""
    widths: Literal["all"] | tuple[Width, ...] | None = None
    """Widths to time, or "all" distinct ones (default: the paper's nine, and those that were evaluated)."""
    backends: tuple[Literal["torch", "onnx", "openvino"], ...] = ("torch",)
    """What runs the networks."""
    batch_size: tuple[int, ...] = (1,)
    """Batch sizes to time."""
    threads: int | None = None
    """Threads that compute one batch (default: PyTorch's own number)."""
    repeats: int = 10
    """How often each network takes its turn, with four timed runs each time."""
    size: int | None = None
    """Side of the images in pixels (default: that of training)."""
    data: str | None = None
    """The evaluation whose accuracies to show, by the name of its data (default: the only one)."""
    device: str | None = None
    """A name for the device (default: that of its processor, or of the file given by --device-profile)."""
    device_profile: Path | None = None
    """A CSV or JSON table of latencies measured elsewhere, instead of measuring here."""
    overwrite: bool = False
    """Replace an earlier profile of that device."""


def main(arguments: list[str]) -> None:
    command = parse(ProfileCommand, "profile", arguments)
    from us3l.commands import report
    from us3l.commands.screen import CommandScreen
    from us3l.reporting.profile_tables import profile_figure, profile_table
    from us3l.verbs import profile as measure

    screen = CommandScreen()
    found = measure(**vars(command), progress=screen)
    profile, picture = found.profile, found.files[0].with_suffix(".png")
    profile_figure(profile, found.accuracies, picture, f"{command.run.resolve().name} on {profile.device}")
    for batch in profile.batches():
        screen.say(f"\nbatch {batch}, {profile.image_size} x {profile.image_size} pixels; p50/p95")
        screen.console.print(profile_table(profile, found.accuracies, batch))
    if profile.agreement:
        screen.say(f"agreement: nearest neighbours shared with the full network, {profile.agreement.images} images")
    screen.say(f"written: {picture.with_suffix('')}.csv, .json and .png")
    report.renew(command.run)
