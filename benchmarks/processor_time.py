"""One elastic training against nine networks alone, by time: `python -m benchmarks.processor_time FOLDERS...`.

Among the runs in the folders are networks trained alone (`individual`), each once, and elastic ones of several lengths.
The table says which share of the time of nine networks alone one elastic training needs to be as accurate as each of
them, by the linear probe; between two lengths it goes in a straight line over the logarithm of time. Seconds per step
of the widths that were not trained alone lie between those of their neighbours. Nothing in the runs is changed.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.unlabelled import find_runs
from us3l.evaluation.tasks import NINE_WIDTHS
from us3l.reporting import style as draw
from us3l.run import Run
from us3l.run.evaluations import read_evaluations, usual_evaluation
from us3l.run.records import read_speeds
from us3l.training.run import config_of
from us3l.width import Width


@dataclass(frozen=True)
class Trained:
    """A run: how long it took, and how good it is."""

    alone: float | None
    """Its width, if it is a network alone."""
    epochs: int
    minutes: float
    linear: dict[Width, float]
    """Percent, by width."""


def read(run: Run) -> Trained | None:
    """None if the run was not timed or not evaluated."""
    speeds, network = read_speeds(run), config_of(run).recipe.network
    known = {name: one for name, one in read_evaluations(run).items() if one.percent("linear")}
    if not speeds or not known:
        return None
    linear = usual_evaluation(known).percent("linear")
    if network.individual is not None:
        linear = {network.individual: linear[1.0]}
    return Trained(network.individual, config_of(run).recipe.epochs, sum(s.seconds for s in speeds) / 60, linear)


def nine_minutes(alone: Sequence[Trained]) -> float:
    """Of nine networks, one after another."""
    known = sorted((one.alone, one.minutes) for one in alone if one.alone is not None)
    widths, minutes = zip(*known, strict=True)
    return float(np.interp(sorted(NINE_WIDTHS), widths, minutes).sum())


def reaches(ours: Sequence[Trained], width: float, goal: float) -> float | None:
    """The minutes after which the elastic network is as good as the goal; None if it never is.

    Args:
        ours: From the shortest to the longest.
        width: Of the sub-network.
        goal: Accuracy in percent.
    """
    if ours[0].linear[width] >= goal:
        return ours[0].minutes
    for before, after in pairwise(ours):
        low, high = before.linear[width], after.linear[width]
        if low < goal <= high:
            times = np.log([before.minutes, after.minutes])
            return float(np.exp(np.interp(goal, [low, high], times)))
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--picture", type=Path, default=Path("benchmarks/processor_time.png"))
    chosen = parser.parse_args()
    found = [one for run in find_runs(chosen.folders) if (one := read(run))]
    alone = sorted((one for one in found if one.alone is not None), key=lambda one: one.alone or 0)
    ours = sorted((one for one in found if one.alone is None), key=lambda one: one.minutes)
    if len(alone) < 2 or not ours:
        parser.error("give timed and evaluated runs: networks alone of several widths, and elastic ones")
    nine = nine_minutes(alone)
    table = Table("width", "alone %", "minutes alone", *(f"{one.epochs} epochs %" for one in ours), "share", box=None)
    for one in reversed(alone):
        assert one.alone is not None
        needed = reaches(ours, one.alone, one.linear[one.alone])
        share = "not reached" if needed is None else f"{needed / nine:.0%}"
        if needed == ours[0].minutes:
            share = f"at most {share}"
        figures = (f"{each.linear[one.alone]:.1f}" for each in ours)
        table.add_row(f"{one.alone:g}x", f"{one.linear[one.alone]:.1f}", f"{one.minutes:.1f}", *figures, share)
    console = Console()
    console.print(table)
    lengths = ", ".join(f"{one.epochs} epochs {one.minutes:.1f}" for one in ours)
    console.print(f"minutes: nine networks alone {nine:.1f}; ours {lengths}")
    picture(alone, ours, nine, chosen.picture)
    console.print(f"written: {chosen.picture}")


def picture(alone: Sequence[Trained], ours: Sequence[Trained], nine: float, path: Path) -> None:
    """Accuracy against processor time: a line for each width of ours, a star for the nine networks alone."""
    figure = draw.new_figure(8, 5, "One training against nine, by processor time")
    axes = figure.subplots()
    for number, one in enumerate(reversed(alone)):
        assert one.alone is not None
        style = draw.line_style(number)
        minutes = [each.minutes for each in ours]
        axes.plot(minutes, [each.linear[one.alone] for each in ours], label=f"US3L-plus, {one.alone:g}x", **style)
        axes.plot([nine], [one.linear[one.alone]], color=style["color"], marker="*", markersize=13, linestyle="none")
    axes.plot([], [], color=draw.INK, marker="*", markersize=13, linestyle="none", label="nine networks alone")
    draw.log_ticks(axes)
    axes.xaxis.set_major_formatter("{x:g}")
    draw.plain(axes, "processor time of all training (minutes)", "linear probe (%)")
    draw.legend(figure, axes, columns=3, size=10)
    draw.save(figure, path)


if __name__ == "__main__":
    main()
