"""`us3l profile`"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from us3l.cli.parse import parse
from us3l.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from us3l.deploy.profile import Latency
    from us3l.slimmable import Slimmable


@dataclass(frozen=True)
class ProfileCommand:
    """What each width costs, and how fast it is on this device, beside its evaluated accuracy.

    Parameters, MACs, bytes and peak activation memory are computed for every distinct width; latencies are measured for
    the widths asked for. Results come as a table, and as profile/profile.csv, .json and .png in the run's folder.

    examples:
      us3l profile runs/demo
      us3l profile runs/photos --widths 1 0.5 0.25 --backends torch onnx openvino --batch 1 8 --threads 4
      us3l profile runs/photos --device-profile phone.csv      # columns: width,backend,batch,p50_ms,p95_ms
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run's folder, or a model's."""
    widths: Literal["all"] | tuple[float, ...] | None = None
    """Widths to time, or "all" distinct ones (default: the paper's nine, and those that were evaluated)."""
    backends: tuple[Literal["torch", "onnx", "openvino"], ...] = ("torch",)
    """What runs the networks."""
    batch: tuple[int, ...] = (1,)
    """Batch sizes to time."""
    threads: int | None = None
    """Threads that compute one batch (default: as many as PyTorch takes)."""
    repeats: int = 10
    """Turns that each network takes, of four timed runs each."""
    image_size: int | None = None
    """Side of the images in pixels (default: that of training)."""
    data: str | None = None
    """The evaluation to join, by the name of its data (default: the only one)."""
    device_profile: Path | None = None
    """A CSV or JSON table of latencies measured elsewhere, instead of measuring here."""
    overwrite: bool = False
    """Replace an earlier profile."""


def main(arguments: list[str]) -> int:
    command = parse(ProfileCommand, "profile", arguments)
    folder = command.run / "profile"
    if (folder / "profile.json").exists() and not command.overwrite:
        raise UserError(f"{folder} already holds a profile: move it, or profile with --overwrite")
    from us3l.cli import report
    from us3l.cli.data import load_model
    from us3l.console import Console
    from us3l.data.preprocessing import Preprocessing
    from us3l.deploy.backends import machine, set_threads
    from us3l.deploy.profile import Profile, all_costs, read_accuracies, read_device_profile, write_profile
    from us3l.progress import Counting
    from us3l.report.profile import profile_figure, profile_table

    console = Console()
    net = load_model(command.run)
    accuracies = read_accuracies(net, command.run, command.data)
    size = command.image_size or Preprocessing.of(net).size
    if command.device_profile:
        found = read_device_profile(net, command.device_profile)
        where = {"file": str(command.device_profile)}
        title = f"{command.run.name}: latencies of {command.device_profile.name}"
    else:
        threads = set_threads(command.threads)
        found = measure(command, net, size, threads, console, set(accuracies.percent) if accuracies else set())
        where = machine(command.backends, threads)
        title = f"{command.run.name}: {where['cpu']}, {threads} thread{'s' * (threads > 1)}"
    with Counting(console, "counting costs", len(net.widths)) as counting:
        profile = Profile(size, all_costs(net, size, counting.more), found, where)

    for batch in profile.batches():
        console.print(f"\nbatch {batch}, {size} x {size} pixels; p50/p95", highlight=False)
        console.print(profile_table(profile, accuracies, batch))
    write_profile(folder, profile, accuracies)
    profile_figure(profile, accuracies, folder / "profile.png", title)
    console.print(f"written: {folder / 'profile'}.csv, .json and .png", highlight=False, soft_wrap=True)
    return report.renew(command.run)


def measure(
    command: ProfileCommand, net: Slimmable, size: int, threads: int, console: Console, evaluated: set[float]
) -> list[Latency]:
    from us3l.deploy.backends import library
    from us3l.deploy.profile import latencies
    from us3l.evaluation.tasks import NINE_WIDTHS
    from us3l.progress import Counting

    if min(command.batch) < 1 or command.repeats < 1 or size < 1:
        raise UserError("--batch, --repeats and --image-size must be at least 1")
    asked = net.widths if command.widths == "all" else command.widths or {*net.among(NINE_WIDTHS), *evaluated}
    widths = sorted({net.canonical(width) for width in asked}, reverse=True)
    if missing := [width for width in widths if not net.calibrated(width)]:
        raise UserError(f"width {missing[0]:g} is not calibrated: us3l.calibrate(net, images) and save the model again")
    for backend in command.backends:
        library(backend)
    networks = len(widths) * len(command.backends)
    turns = networks * len(command.batch) * command.repeats
    with Counting(console, "measuring", networks + turns) as counting:
        return latencies(net, size, widths, command.backends, command.batch, threads, command.repeats, counting.more)
