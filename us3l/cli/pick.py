"""`us3l pick`"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from us3l.cli.parse import parse, program

if TYPE_CHECKING:
    from us3l.deploy.picking import Picked


@dataclass(frozen=True)
class Pick:
    """The best width within all budgets given, and what is left of them.

    The best is the most accurate of the widths that were evaluated. Without labels it is the one that agrees most with
    the full network, as `us3l profile` measures it, or else the widest. Latencies come from `us3l profile RUN`; other
    costs need no profile. The exit code is 1 when nothing fits.

    examples:
      us3l pick runs/demo --latency-ms 5
      us3l pick runs/photos --latency-ms 20 --percentile p50 --backend openvino --batch-size 8
      us3l pick runs/photos --size-mb 0.25 --memory-mb 0.1 --accuracy-at-least 40 --json
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run's folder, or a model's."""
    latency_ms: float | None = None
    """Most milliseconds for one batch."""
    macs: float | None = None
    """Most multiply-accumulates for one image."""
    params: float | None = None
    """Most parameters."""
    size_mb: float | None = None
    """Most megabytes of the weights, in 32 bits."""
    memory_mb: float | None = None
    """Most megabytes of the activations at any time, for one batch."""
    accuracy_at_least: float | None = None
    """Least accuracy in percent."""
    device: str | None = None
    """Whose latencies count, by the name of its profile (default: the only one)."""
    backend: str | None = None
    """Count only latencies of that backend (default: the fastest one)."""
    batch_size: int | None = None
    """Batch size (default: the smallest that was profiled, or 1)."""
    percentile: Literal["p50", "p95"] = "p95"
    """Which latency must keep the budget."""
    data: str | None = None
    """The evaluation to go by, by the name of its data (default: the only one)."""
    json: bool = False
    """Print the choice as JSON."""


def main(arguments: list[str]) -> int:
    command = parse(Pick, "pick", arguments)
    from us3l.verbs import pick

    picked = pick(**{name: value for name, value in vars(command).items() if name != "json"})
    print(json.dumps(picked.to_plain(), indent=2)) if command.json else show(command, picked)
    return 0 if picked.fits else 1


def show(command: Pick, picked: Picked) -> None:
    """The choice for people."""
    from us3l.console import Console
    from us3l.reporting.deployed import picked_table

    console = Console()
    choice, accuracies, found = picked.choice, picked.accuracies, picked.to_plain()
    width, backend = found["width"], found["backend"]
    on = f" on {found['device']}, {backend}, batch {found['batch']}, {found['percentile']}" if backend else ""
    if choice.fits:
        console.say(f"{width:g}x{on}: the best within the budget, by {found['ranked_by']}", style="bold")
    else:
        console.print(f"nothing fits; the nearest is {width:g}x{on}, by {found['ranked_by']}")
    console.print(picked_table(picked))
    if not choice.by_accuracy:
        console.say(f"no width was evaluated or compared with the full network: {program()} profile {command.run}")
    if choice.unknown and accuracies and accuracies.metric != "agreement":
        console.print(
            f"{choice.unknown:g}x also fits but was not evaluated: "
            f"{program()} evaluate {command.run} --widths {choice.unknown:g}",
            soft_wrap=True,
        )
    if choice.fits:
        kind = f" --format {backend}" if backend in ("onnx", "openvino") else ""
        console.print(f"next: {program()} export {command.run} --widths {width:g}{kind}", soft_wrap=True)
