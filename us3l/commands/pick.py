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
    from us3l.deploy.picking import INT8
    from us3l.reporting.deploy_tables import picked_table

    choice, accuracies, backend = picked.choice, picked.accuracies, picked.to_plain()["backend"]
    screen.say(picked.title, style="bold" if picked.fits else None)
    screen.console.print(picked_table(picked))
    kind, quantised, _ = (backend or "").partition(INT8)
    if not choice.by_accuracy and quantised:
        screen.say("the accuracy of files in INT8 was not measured: the widest is taken")
    elif not choice.by_accuracy:
        screen.say(f"no width was evaluated or compared with the full network: {program()} profile {settings.run}")
    other = choice.unknown
    if other and (other.backend or "").endswith(INT8):
        screen.say(f"{other.width:g}x on {other.backend} also fits, but the accuracy of files in INT8 was not measured")
    elif other and accuracies and accuracies.metric != "agreement":
        evaluate = f"{program()} evaluate {settings.run} --widths {other.width:g}"
        screen.say(f"{other.width:g}x also fits but was not evaluated: {evaluate}")
    if choice.fits:
        kind = f" --format {kind}{' --int8' if quantised else ''}" if kind in ("onnx", "openvino") else ""
        screen.say(f"next: {program()} export {settings.run} --widths {picked.width:g}{kind}")
