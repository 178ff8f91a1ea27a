"""`us3l pick`"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from us3l.cli.parse import parse, program
from us3l.errors import UserError

if TYPE_CHECKING:
    from us3l.deploy.pick import Choice
    from us3l.deploy.profile import Accuracies, Profile


@dataclass(frozen=True)
class Pick:
    """The best width within all budgets given, and what is left of them.

    The best is the most accurate of the widths that were evaluated, or the widest when none was. Latencies come from
    `us3l profile RUN`; other costs need no profile. The exit code is 1 when nothing fits.

    examples:
      us3l pick runs/demo --latency-ms 5
      us3l pick runs/photos --latency-ms 20 --percentile p50 --backend openvino --batch 8
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
    backend: str | None = None
    """Count only latencies of that backend (default: the fastest one)."""
    batch: int | None = None
    """Batch size (default: the smallest that was profiled, or 1)."""
    percentile: Literal["p50", "p95"] = "p95"
    """Which latency must keep the budget."""
    data: str | None = None
    """The evaluation to go by, by the name of its data (default: the only one)."""
    json: bool = False
    """Print the choice as JSON."""


def main(arguments: list[str]) -> int:
    command = parse(Pick, "pick", arguments)
    from us3l.cli.data import load_model
    from us3l.data.preprocessing import Preprocessing
    from us3l.deploy.pick import BUDGETS, pick
    from us3l.deploy.profile import Profile, all_costs, candidates, read_accuracies, read_profile

    if command.batch is not None and command.batch < 1:
        raise UserError(f"a batch must be at least 1, not {command.batch}")
    net = load_model(command.run)
    folder = command.run / "profile"
    if (folder / "profile.json").exists():
        profile = read_profile(folder)
    elif command.latency_ms is not None:
        raise UserError(f"latencies are not measured yet: us3l profile {command.run} first")
    else:
        size = Preprocessing.of(net).size
        profile = Profile(size, all_costs(net, size))
    accuracies = read_accuracies(net, command.run, command.data)
    batch = command.batch or min(profile.batches(), default=1)
    if command.latency_ms is not None:
        check_profiled(profile, command.backend, batch, folder)
    budgets = {name: value for name in BUDGETS if (value := getattr(command, name)) is not None}
    table = candidates(profile, accuracies, command.backend, batch, command.percentile)
    choice = pick(table, budgets, command.accuracy_at_least)
    found = describe(command, choice, accuracies, budgets, batch)
    print(json.dumps(found, indent=2)) if command.json else show(command, choice, found, accuracies)
    return 0 if choice.fits else 1


def check_profiled(profile: Profile, backend: str | None, batch: int, folder: Path) -> None:
    if backend is not None and backend not in profile.backends():
        raise UserError(f"{folder} has no latency of {backend}: it has {', '.join(profile.backends())}")
    if batch not in profile.batches():
        raise UserError(f"{folder} has no latency of batch {batch}: it has {', '.join(map(str, profile.batches()))}")


def describe(
    command: Pick, choice: Choice, accuracies: Accuracies | None, budgets: dict[str, float], batch: int
) -> dict[str, Any]:
    """The choice for machines."""
    chosen = choice.candidate
    return {
        "fits": choice.fits,
        "width": chosen.width,
        "backend": chosen.backend if "latency_ms" in budgets else None,
        "batch": batch,
        "percentile": command.percentile,
        "ranked_by": f"{accuracies.metric} accuracy on {accuracies.data}"
        if choice.by_accuracy and accuracies
        else "width",
        "accuracy": chosen.accuracy,
        "accuracy_at_least": command.accuracy_at_least,
        "figures": dict(chosen.figures),
        "budgets": budgets,
        "margins": dict(choice.margins),
        "wider_but_not_evaluated": choice.unknown,
    }


def show(command: Pick, choice: Choice, found: dict[str, Any], accuracies: Accuracies | None) -> None:
    """The choice for people."""
    from rich import box
    from rich.table import Table

    from us3l.console import Console
    from us3l.deploy.pick import BUDGETS

    console = Console()
    width, backend = found["width"], found["backend"]
    on = f" on {backend}, batch {found['batch']}, {found['percentile']}" if backend else ""
    if choice.fits:
        console.say(f"{width:g}x{on}: the best within the budget, by {found['ranked_by']}", style="bold")
    else:
        console.print(f"nothing fits; the nearest is {width:g}x{on}, by {found['ranked_by']}")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for header in ("", "needs", "budget", "margin"):
        table.add_column(header, justify="right" if header else "left")
    for name, budget in found["budgets"].items():
        share = found["margins"][name] / budget
        style = "red" if share < 0 else ""
        table.add_row(BUDGETS[name], figure(found["figures"][name]), figure(budget), f"{share:+.1%}", style=style)
    if found["accuracy"] is not None:
        least = found["accuracy_at_least"]
        gap = [f"at least {least:g}", f"{found['accuracy'] - least:+.1f}"] if least is not None else ["", ""]
        table.add_row("accuracy, %", f"{found['accuracy']:.1f}", *gap, style="red" if gap[1].startswith("-") else "")
    console.print(table)
    if choice.unknown and accuracies:  # evaluating replaces what was found before
        widths = " ".join(f"{known:g}" for known in sorted({*accuracies.percent, choice.unknown}, reverse=True))
        console.print(
            f"{choice.unknown:g}x also fits but was not evaluated: "
            f"{program()} evaluate {command.run} --widths {widths}",
            soft_wrap=True,
        )
    if choice.fits:
        kind = f" --format {backend}" if backend in ("onnx", "openvino") else ""
        console.print(f"next: {program()} export {command.run} --width {width:g}{kind}", soft_wrap=True)


def figure(value: float) -> str:
    from us3l.report.tables import human

    return human(value) if value >= 1000 else f"{value:.3g}"
