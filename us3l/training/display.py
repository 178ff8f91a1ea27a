"""What a person sees of a run: a live table in a terminal, plain lines elsewhere; and always the log file.

Only what says whether a run goes well is shown; metrics.jsonl and the page have all gauges.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from us3l.objective.spec import Objective
from us3l.system.files import append_lines
from us3l.system.progress import PLAIN_EVERY, Progress, Screen, clock, redraws
from us3l.system.streams import one_line, printable
from us3l.training.monitor import WidthGauges
from us3l.width import Width

MUCH_WAITING = 0.1
"""Share of the time that is spent on waiting for images from which on it is said."""
FIRST_STEPS = 10
WORTH_TELLING = 60.0
"""Steps after which it is said how long the run takes, and seconds from which on it is."""
SPREAD = "spread of the embeddings: about 1 is healthy, near 0 is collapsed (see docs/faq.md)"


def losses_line(objective: Objective, widths: Sequence[Width], losses: Sequence[float]) -> str:
    """Describe the losses of a step by their names: that of the full network, and those of the sub-networks.

    Values of losses of different names cannot be compared with each other.

    >>> losses_line(Objective(), [1.0, 0.25, 0.5], [4.2, -0.91, -0.875])
    'loss: full network 4.200 (InfoNCE); sub-networks 0.25x -0.910, 0.5x -0.875 (negative cosine)'
    """
    base, sub = (" + ".join(term.loss.title for term in terms) for terms in (objective.base_terms, objective.sub_terms))
    full = f"loss: full network {losses[0]:.3f} ({base})"
    if len(losses) == 1:
        return full
    others = ", ".join(f"{width:g}x {loss:.3f}" for width, loss in zip(widths[1:], losses[1:], strict=True))
    return f"{full}; sub-networks {others} ({sub})"


class Display:
    def __init__(self, progress: Progress, log: Path | None, costs: list[float], start: int) -> None:
        """`costs` are the relative costs of the steps; `start` is the first step to come."""
        self.progress = progress
        self.log = log
        self.remaining = sum(costs[start:])
        self.costs = costs
        self.seconds = self.done = self.last_line = 0.0
        self.steps = 0  # done since the start
        self.expected: float | None = None  # seconds, as was said after the first of them
        self.recent = [0, 0.0, 0.0]  # images, seconds, and seconds of waiting for images, since the last look
        self.gauges: WidthGauges = {}
        console = progress.console if isinstance(progress, Screen) else None
        self.live = Live(console=console, refresh_per_second=4) if console and redraws(console) else None

    def __enter__(self) -> Display:
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.stop()

    def say(self, text: str, style: str | None = None) -> None:
        """Show a message that stays."""
        self.progress.say(printable(text), style)
        self.record(text)

    def record(self, text: str) -> None:
        """Write a line of the log, whatever names are in it."""
        if self.log:
            append_lines(self.log, [f"{time.strftime('%Y-%m-%d %H:%M:%S')} {one_line(text)}"])

    def step(self, step: int, seconds: float, images: int, epoch: str, losses: str, waited: float = 0.0) -> None:
        """Note that a step is done.

        Args:
            step: Its number, from 0.
            seconds: How long it took.
            images: How many images it used.
            epoch: Such as "2/15".
            losses: Empty when they were not fetched from the device.
            waited: How much of the time was spent on waiting for images; said when it is a tenth or more.
        """
        self.seconds += seconds
        self.steps += 1
        self.done += self.costs[step]
        self.recent = [so_far + more for so_far, more in zip(self.recent, (images, seconds, waited), strict=True)]
        if not losses:
            return
        left = (self.remaining - self.done) * self.seconds / self.done
        if self.expected is None and self.steps >= FIRST_STEPS:
            self.expected = self.seconds + left
            if self.expected >= WORTH_TELLING:
                self.say(
                    f"about {clock(self.expected)} of training, measured on the first {self.steps} steps (fewer: "
                    "`epochs=N`); Ctrl-C stops it, and `resume=True` continues"
                )
        speed, waiting = self.recent[0] / self.recent[1], self.recent[2] / self.recent[1]
        self.recent = [0, 0.0, 0.0]
        text = f"epoch {epoch}  step {step + 1}/{len(self.costs)}  {speed:.0f} images/s  {clock(left)} left"
        text += f"  ({waiting:.0%} of the time waiting for images)" if waiting >= MUCH_WAITING else ""
        if self.live:  # nothing beside the bar, so that no number is cut off on a narrow screen
            bar = Table.grid(expand=True)
            bar.add_row(ProgressBar(len(self.costs), step + 1))
            self.live.update(Group(bar, Text(text), Text(losses), self.table()))
        elif time.monotonic() - self.last_line > PLAIN_EVERY or step + 1 == len(self.costs):
            self.last_line = time.monotonic()
            self.say(f"{text}  {losses}")

    def show(self, gauges: WidthGauges) -> None:
        """Show the gauges: kNN accuracy, or LiDAR where there are no labels, and the spread of the embeddings."""
        first, self.gauges = not self.gauges, gauges
        parts = []
        for width, values in gauges.items():
            knn = f"kNN {values['knn']:.1f} %, " if "knn" in values else ""
            lidar = f"LiDAR {values['lidar']:.1f}, " if "lidar" in values and not knn else ""
            parts.append(f"{width:g}x {knn}{lidar}spread {values['spread']:.2f}")
        line = "; ".join(parts)
        if self.live:
            self.record(line)
            return
        if first:
            self.say(SPREAD)
        self.say(line)

    def table(self) -> Table:
        labelled = any("knn" in values for values in self.gauges.values())
        quality, title = ("knn", "kNN %") if labelled else ("lidar", "LiDAR (no labels)")
        table = Table("width", title, "spread (1: healthy, 0: collapsed)", box=None)
        for width, values in self.gauges.items():
            shown = f"{values[quality]:.1f}" if quality in values else ""
            table.add_row(f"{width:g}x", shown, f"{values['spread']:.2f}")
        return table
