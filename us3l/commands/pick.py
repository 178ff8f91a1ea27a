"""`us3l pick`: the best width within a budget."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from us3l.commands.command import ModelCommand, command
from us3l.deploy.deployment_settings import PickSettings

if TYPE_CHECKING:
    from us3l.commands.screen import CommandScreen
    from us3l.deploy.picking import Picked


@dataclass(frozen=True)
class Pick(PickSettings, ModelCommand):
    """Choose the best width within the given budgets, and show the margins.

    The best is the most accurate of the widths that were evaluated. Without labels it is the one that agrees most with
    the full network, as `us3l profile` measures it, or else the widest. Latencies come from `us3l profile RUN`; other
    costs need no profile. The exit code is 1 when nothing fits.

    examples:
      us3l pick runs/demo --latency-ms 5
      us3l pick runs/photos --latency-ms 20 --percentile p50 --backend openvino --batch-size 8
      us3l pick runs/photos --size-mb 0.25 --memory-mb 0.1 --accuracy-at-least 40 --json
    """


@dataclass(frozen=True)
class PickLine(Pick):
    __doc__ = Pick.__doc__

    json: bool = False
    """Print the choice as JSON."""


@command(Pick, line=PickLine)
def pick(settings: Pick) -> Picked:
    """Choose the best width within all budgets given. A network in memory has no latencies.

    Returns:
        The choice: its `width`, and whether it `fits`; if nothing does, it is the nearest.
    """
    from us3l.deploy.picking import pick_width
    from us3l.run.unsaved import run_of

    return pick_width(run_of(settings.run), settings)


def main(settings: PickLine, screen: CommandScreen) -> int:
    picked = pick.with_settings(settings)
    print(json.dumps(picked.to_plain(), indent=2)) if settings.json else show(settings, screen, picked)
    return 0 if picked.fits else 1


def show(settings: PickLine, screen: CommandScreen, picked: Picked) -> None:
    """Print the choice for people."""
    from us3l.commands.screen import program
    from us3l.reporting.deploy_tables import picked_table

    choice, accuracies, backend = picked.choice, picked.accuracies, picked.to_plain()["backend"]
    screen.say(picked.title, style="bold" if picked.fits else None)
    screen.console.print(picked_table(picked))
    if not choice.by_accuracy:
        screen.say(f"no width was evaluated or compared with the full network: {program()} profile {settings.run}")
    if choice.unknown and accuracies and accuracies.metric != "agreement":
        evaluate = f"{program()} evaluate {settings.run} --widths {choice.unknown:g}"
        screen.say(f"{choice.unknown:g}x also fits but was not evaluated: {evaluate}")
    if choice.fits:
        kind = f" --format {backend}" if backend in ("onnx", "openvino") else ""
        screen.say(f"next: {program()} export {settings.run} --widths {picked.width:g}{kind}")
