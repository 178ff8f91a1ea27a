"""One elastic training against nine networks alone, by time: `python -m benchmarks.processor_time FOLDERS...`.

Among the runs in the folders are networks trained alone (`individual`) and elastic ones of several lengths; seeds are
averaged. The table says which share of the time of nine networks alone one elastic training needs to be as accurate as
each of them, by the linear probe; between two lengths it goes in a straight line over the logarithm of time. Times are
steps times the processor seconds of a step, on one thread: steps of all runs are timed here, taking turns, the best of
several, because those that the runs wrote down depend on what else the machine did. Nothing in the runs is changed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from lightning_fabric import Fabric
from rich.console import Console
from rich.table import Table

from benchmarks.steps import typical_seed
from benchmarks.timing import best_seconds
from benchmarks.unlabelled import find_runs
from us3l.data.sources import ImageSet
from us3l.evaluation.prepare import NINE_WIDTHS
from us3l.reporting import style as draw
from us3l.run import Run
from us3l.run.evaluations import usual_evaluation
from us3l.run.training_log import read_records
from us3l.system.devices import precision_for
from us3l.training.run_config import RunConfig, config_of
from us3l.training.trainer import Trainer

STEPS = 6  # of a training that are timed, spread over it
TURNS = 3


@dataclass(frozen=True)
class Trained:
    """Runs that differ by their seeds: how long they take, and how good they are."""

    alone: float | None
    """The width, if they are networks alone."""
    epochs: int
    minutes: float
    linear: Mapping[float, float]
    """Percent, by width."""
    seeds: int = 1


@dataclass(frozen=True)
class Evaluated:
    """One run."""

    config: RunConfig
    steps: int
    linear: Mapping[float, float]

    @property
    def alone(self) -> float | None:
        return self.config.recipe.network.individual


def read(run: Run) -> Evaluated | None:
    """None if the run was not evaluated."""
    known = {name: one for name, one in run.evaluations.items() if one.percent("linear")}
    if not known:
        return None
    config = config_of(run)
    linear = {float(width): percent for width, percent in usual_evaluation(known).percent("linear").items()}
    alone = config.recipe.network.individual
    steps = max(record.step for record in read_records(run)) + 1
    return Evaluated(config, steps, linear if alone is None else {alone: linear[1.0]})


def averaged(runs: Sequence[Evaluated], seconds: Mapping[float | None, float]) -> list[Trained]:
    """Over the seeds.

    Args:
        runs: All of them.
        seconds: Of a step, by the width of networks alone; of the elastic network, by None.
    """
    groups: dict[tuple[float | None, int], list[Evaluated]] = {}
    for run in runs:
        groups.setdefault((run.alone, run.config.recipe.epochs), []).append(run)
    return [
        Trained(
            alone,
            epochs,
            fmean(run.steps for run in group) * seconds[alone] / 60,
            {width: fmean(run.linear[width] for run in group) for width in group[0].linear},
            len(group),
        )
        for (alone, epochs), group in groups.items()
    ]


def step_seconds(alone: RunConfig, elastic: RunConfig, widths: Iterable[float]) -> dict[float | None, float]:
    """Processor seconds of a step of a network alone of each width, and of the elastic one (None), taking turns."""
    recipes: dict[float | None, RunConfig] = {
        width: replace(alone, recipe=replace(alone.recipe, network=replace(alone.recipe.network, individual=width)))
        for width in widths
    }
    recipes[None] = elastic
    jobs: dict[str, Callable[[], object]] = {}
    for width, config in recipes.items():
        trainer = noise_trainer(config)
        jobs |= {f"{width} {step}": partial(one_step, trainer, step) for step in range(STEPS)}
    best = best_seconds(jobs, turns=TURNS, clock=time.process_time)
    return {width: fmean(best[f"{width} {step}"] for step in range(STEPS)) for width in recipes}


def noise_trainer(config: RunConfig) -> Trainer:
    """Of a run's settings, on noise, with as few steps as are timed: their widths are as in a long training."""
    torch.manual_seed(0)
    recipe, side = config.recipe, config.recipe.views.size
    images = torch.randint(0, 256, (recipe.batch_size, 3, side, side), dtype=torch.uint8)
    recipe = replace(recipe, images=None, epochs=STEPS, max_steps=STEPS, seed=typical_seed(recipe, STEPS))
    asked = config.machine.precision
    fabric = Fabric(accelerator="cpu", precision=precision_for("cpu") if asked == "auto" else asked)
    return Trainer(recipe, ImageSet("noise", images), fabric)


def one_step(trainer: Trainer, step: int) -> None:
    trainer.step = step
    trainer.train_step()


def nine_minutes(seconds: Mapping[float | None, float], steps: float) -> float:
    """Of nine networks alone, one after another."""
    return sum(seconds[width] for width in NINE_WIDTHS) * steps / 60


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
    torch.set_num_threads(1)
    runs = [found for run in find_runs(chosen.folders) if (found := read(run))]
    single, elastic = ([one for one in runs if (one.alone is None) == shared] for shared in (False, True))
    if not single or not elastic:
        parser.error("give evaluated runs: networks alone of several widths, and elastic ones")
    for kind in (single, elastic):
        if any(one.config.recipe.objective != kind[0].config.recipe.objective for one in kind):
            parser.error("the networks alone, and the elastic ones, must each be trained by one method")
    widths = {*NINE_WIDTHS, *(one.alone for one in single if one.alone is not None)}
    seconds = step_seconds(single[0].config, elastic[0].config, widths)
    alone = sorted(averaged(single, seconds), key=lambda one: one.alone or 0)
    ours = sorted(averaged(elastic, seconds), key=lambda one: one.minutes)
    nine = nine_minutes(seconds, fmean(one.steps for one in single))
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
    lengths = ", ".join(f"{one.epochs} epochs {one.minutes:.1f} ({one.seeds} seeds)" for one in ours)
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
