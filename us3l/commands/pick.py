"""`us3l pick`"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from us3l.commands.parse import RunArgument, parse, program

if TYPE_CHECKING:
    from us3l.deploy.picking import Picked


@dataclass(frozen=True)
class Pick:
    """Choose the best width within the given budgets, and show the margins.

    The best is the most accurate of the widths that were evaluated. Without labels it is the one that agrees most with
    the full network, as `us3l profile` measures it, or else the widest. Latencies come from `us3l profile RUN`; other
    costs need no profile. The exit code is 1 when nothing fits.

    examples:
      us3l pick runs/demo --latency-ms 5
      us3l pick runs/photos --latency-ms 20 --percentile p50 --backend openvino --batch-size 8
      us3l pick runs/photos --size-mb 0.25 --memory-mb 0.1 --accuracy-at-least 40 --json
    """

    run: RunArgument
    """A run's folder, or a model's."""
    latency_ms: float | None = None
    """At most this many milliseconds per batch."""
    macs: float | None = None
    """At most this many multiply-accumulates per image."""
    params: float | None = None
    """At most this many parameters."""
    size_mb: float | None = None
    """At most this many megabytes of weights, in 32 bits."""
    memory_mb: float | None = None
    """At most this many megabytes of activations at any time, per batch."""
    accuracy_at_least: float | None = None
    """At least this accuracy, in percent."""
    device: str | None = None
    """The device whose latencies count, by the name of its profile (default: the only one)."""
    backend: str | None = None
    """Use only the latencies of this backend (default: the fastest one)."""
    batch_size: int | None = None
    """Batch size (default: the smallest that was profiled, or 1)."""
    percentile: Literal["p50", "p95"] = "p95"
    """Which latency must be within the budget."""
    data: str | None = None
    """The evaluation whose accuracies count, by the name of its data (default: the only one)."""
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
    from us3l.reporting.deployed import picked_table
    from us3l.system.console import Console

    console = Console()
    choice, accuracies, backend = picked.choice, picked.accuracies, picked.to_plain()["backend"]
    console.say(picked.title, style="bold" if picked.fits else None)
    console.print(picked_table(picked))
    if not choice.by_accuracy:
        console.say(f"no width was evaluated or compared with the full network: {program()} profile {command.run}")
    if choice.unknown and accuracies and accuracies.metric != "agreement":
        evaluate = f"{program()} evaluate {command.run} --widths {choice.unknown:g}"
        console.say(f"{choice.unknown:g}x also fits but was not evaluated: {evaluate}")
    if choice.fits:
        kind = f" --format {backend}" if backend in ("onnx", "openvino") else ""
        console.say(f"next: {program()} export {command.run} --widths {picked.width:g}{kind}")
