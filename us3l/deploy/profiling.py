"""What `us3l profile` does: costs and latencies of a run's widths on a device, kept in the run's folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from us3l.data.preprocessing import Preprocessing
from us3l.data.sources import load
from us3l.deploy.agreement import agreement
from us3l.deploy.device_table import read_device_profile
from us3l.deploy.evaluated import Accuracies, best_searched, read_accuracies
from us3l.deploy.evidence import calibrate_rest
from us3l.deploy.profile import all_costs, latencies
from us3l.evaluation.tasks import NINE_WIDTHS
from us3l.evaluation.unlabelled import COMPARED, FEWEST, NEIGHBOURS
from us3l.run import Run
from us3l.run.profiles import Agreement, Latency, Profile, device_name, profile_file, write_profile
from us3l.runtime.backends import Backend, library, machine, set_threads
from us3l.slimmable import Slimmable
from us3l.system.devices import processor_name
from us3l.system.errors import UserError
from us3l.system.progress import SILENT, Progress
from us3l.width import AnyWidth, Width

Widths = Literal["all"] | Sequence[AnyWidth]


@dataclass(frozen=True)
class Profiled:
    """A profile, what its widths are ranked by, and where both were written."""

    profile: Profile
    accuracies: Accuracies | None
    files: list[Path]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A dictionary for each width on each backend and batch size."""
        return self.profile.rows(self.accuracies.percent if self.accuracies else None)


def profile_run(
    run: Run,
    widths: Widths | None = None,
    backends: Sequence[Backend] = ("torch",),
    batch_size: Sequence[int] = (1,),
    threads: int | None = None,
    repeats: int = 10,
    size: int | None = None,
    data: str | None = None,
    device: str | None = None,
    device_profile: Path | None = None,
    overwrite: bool = False,
    progress: Progress = SILENT,
) -> Profiled:
    """Measure a run's widths on this machine, or take over a table from another, and keep what was found.

    Args:
        run: a run's folder, or a model's.
        widths: those to time (default: the paper's nine, and those that were evaluated).
        backends: what runs the networks.
        batch_size: batch sizes to time.
        threads: those that compute one batch.
        repeats: turns that each network takes, of four timed runs each.
        size: side of the images (default: that of training).
        data: the evaluation to join, if there are several.
        device: a name for this device (default: its processor's, or that of the table's file).
        device_profile: a table of latencies measured elsewhere, instead of measuring here.
        overwrite: replace an earlier profile of that device.
        progress: what to tell while it works.

    Returns:
        The profile.
    """
    device = device_name(device or (device_profile.stem if device_profile else processor_name()))
    if profile_file(run, device).exists() and not overwrite:
        raise UserError(
            f"{run.folder} already has a profile of {device}: name another `device`, or profile with `overwrite`"
        )
    net = run.network
    preprocessing = Preprocessing.of(net)
    accuracies = read_accuracies(run, net, data)
    side = preprocessing.size if size is None else size
    if device_profile:
        found, where = read_device_profile(net, device_profile), {"file": str(device_profile)}
    else:
        threads = set_threads(threads)
        evaluated = accuracies.percent if accuracies else ()
        asked = widths or {*net.among(NINE_WIDTHS), *evaluated, *best_searched(run, net)}
        chosen = sorted({net.canonical(width) for width in (net.widths if asked == "all" else asked)})[::-1]
        calibrate_rest(run, net, chosen, None, progress)
        found = measure(net, chosen, backends, batch_size, threads, repeats, side, progress)
        where = machine(tuple(backends), threads)
    others = {latency.width for latency in found} - {*net.widths}
    with progress.counting("counting costs", len(net.widths) + len(others)) as counting:
        profile = Profile(side, all_costs(net, side, counting.more, others), found, where, device)
    if accuracies is None:
        profile = replace(profile, agreement=compare(run, net, preprocessing, profile, progress))
        accuracies = by_agreement(profile)
    return Profiled(profile, accuracies, write_profile(run, profile, accuracies.percent if accuracies else None))


def measure(
    net: Slimmable,
    widths: Sequence[Width],
    backends: Sequence[Backend],
    batch_size: Sequence[int],
    threads: int,
    repeats: int,
    size: int,
    progress: Progress,
) -> list[Latency]:
    """Time networks on this machine."""
    if min(batch_size) < 1 or repeats < 1 or size < 1:
        raise UserError("batch_size, repeats and size must be at least 1")
    for backend in backends:
        library(backend)
    networks = len(widths) * len(backends)
    with progress.counting("measuring", networks * (1 + len(batch_size) * repeats)) as counting:
        return latencies(net, size, widths, backends, batch_size, threads, repeats, counting.more)


def compare(
    run: Run, net: Slimmable, preprocessing: Preprocessing, profile: Profile, progress: Progress
) -> Agreement | None:
    """How much the timed widths agree with the full network on images of the training; None where there are too few."""
    data = run.data
    widths = [width for row in profile.costs if net.calibrated(width := row.width) and width in timed_widths(profile)]
    if data is None or not widths or not net.calibrated(1.0):
        return None
    try:
        images = load(data, "train", preprocessing.resize, COMPARED, progress)
    except UserError as error:
        progress.say(f"widths are not compared with the full network: {error}", style="yellow")
        return None
    if len(images) < FEWEST:
        return None
    pixels = torch.cat([preprocessing.apply(part) for part in images.images.split(50)])
    with progress.counting("comparing with the full network", len(widths)) as counting:
        percent = agreement(net, widths, pixels, counting.more)
    return Agreement(images.name, len(images), NEIGHBOURS, percent)


def timed_widths(profile: Profile) -> set[Width]:
    return {latency.width for latency in profile.latencies}


def by_agreement(profile: Profile) -> Accuracies | None:
    """What to rank widths by where nothing was evaluated."""
    found = profile.agreement
    return Accuracies(found.data, "agreement", found.percent) if found else None
