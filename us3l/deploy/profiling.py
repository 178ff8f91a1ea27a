"""What `us3l profile` does: costs and latencies of a run's widths on a device, kept in the run's folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from us3l.costs import cost
from us3l.data.preprocessing import Preprocessing
from us3l.data.sources import load
from us3l.deploy.accuracies import Accuracies, best_searched, by_agreement, read_accuracies
from us3l.deploy.deployment_settings import Backend, ProfileSettings
from us3l.deploy.latency import latencies, read_device_profile
from us3l.deploy.peak_memory import peak_memory
from us3l.evaluation.prepare import NINE_WIDTHS, calibrate_left_out
from us3l.evaluation.unlabelled import COMPARED, FEWEST, NEIGHBOURS, shared_neighbours
from us3l.run import Run
from us3l.run.identity import slug
from us3l.run.profiles import PROFILES, Agreement, Costs, Latency, Profile, write_profile
from us3l.runtime.backends import library, machine, set_threads
from us3l.setting_types import several
from us3l.slimmable import Slimmable
from us3l.system.devices import processor_name
from us3l.system.errors import UserError
from us3l.system.progress import SILENT, Advance, Progress
from us3l.width import FULL, AnyWidth, Width


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


def profile_run(run: Run, settings: ProfileSettings | None = None, progress: Progress = SILENT) -> Profiled:
    """Measure a run's widths on this machine, or take over a table from another, and keep the results.

    Args:
        run: A run, a model's folder, or a network in memory, of which nothing is kept.
        settings: What is timed, and how.
        progress: What to tell while it works.

    Returns:
        The profile.
    """
    settings = settings or ProfileSettings()
    table = None if settings.device_profile is None else Path(settings.device_profile)
    device = slug(settings.device or (table.stem if table else processor_name()))
    if PROFILES.file(run, device).exists() and not settings.overwrite:
        raise UserError(
            f"{run.folder} already has a profile of {device}: name another `device`, or profile with `overwrite`"
        )
    net = run.network
    preprocessing = Preprocessing.of(net)
    accuracies = read_accuracies(run, net, settings.data)
    side = preprocessing.size if settings.size is None else settings.size
    if table:
        found, where = read_device_profile(net, table), {"file": str(table)}
    else:
        threads, backends = set_threads(settings.threads), several(settings.backends)
        evaluated = accuracies.percent if accuracies else ()
        chosen: Iterable[AnyWidth] = {*net.among(NINE_WIDTHS), *evaluated, *best_searched(run, net)}
        if settings.widths == "all":
            chosen = net.widths
        elif settings.widths:
            chosen = several(settings.widths)
        widths = sorted({net.canonical(width) for width in chosen})[::-1]
        calibrate_left_out(run, net, widths, None, progress)
        found = measure(net, widths, backends, several(settings.batch_size), threads, settings.repeats, side, progress)
        where = machine(backends, threads)
    others = {latency.width for latency in found} - {*net.widths}
    with progress.counting("counting costs", len(net.widths) + len(others)) as counting:
        profile = Profile(side, all_costs(net, side, counting.more, others), found, where, name=device)
    if accuracies is None:
        profile = replace(profile, agreement=compare(run, net, preprocessing, profile, progress))
        accuracies = by_agreement(profile)
    percent = accuracies.percent if accuracies else None
    return Profiled(profile, accuracies, write_profile(run, profile, percent) if run.saved else [])


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


@torch.no_grad()
def agreement(
    net: Slimmable, widths: Sequence[Width], images: Tensor, progress: Callable[[int], None] | None = None
) -> dict[Width, float]:
    """The share of nearest neighbours that widths have in common with the full network: see `shared_neighbours`.

    Args:
        net: a calibrated network.
        widths: those to compare.
        images: preprocessed, N x 3 x S x S.
        progress: called for each width that was compared.

    Returns:
        The percentage of shared neighbours by width; 100 for the full network.
    """

    def features(width: Width) -> Tensor:
        return torch.cat([net.at(width)(part) for part in images.split(50)])

    full = features(FULL)
    found = {}
    for width in widths:
        found[width] = shared_neighbours(features(width), full)
        if progress:
            progress(1)
    return found


def all_costs(net: Slimmable, size: int, progress: Advance | None = None, also: Iterable[Width] = ()) -> list[Costs]:
    """The costs of every distinct width and of some sub-networks, widest first. Nothing is computed."""
    found = []
    for width in sorted({*net.widths, *also}, reverse=True):
        found.append(costs_of(net, width, size))
        if progress:
            progress(1)
    return found


def costs_of(net: Slimmable, width: Width, size: int) -> Costs:
    """What does not depend on a device. Nothing is computed."""
    price = cost(net, width, size=size)
    return Costs(width, price.params, price.macs, price.bytes, peak_memory(net.skeleton(width), (3, size, size)))


def timed_widths(profile: Profile) -> set[Width]:
    return {latency.width for latency in profile.latencies}
