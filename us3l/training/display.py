"""What a person sees of a run: a live table in a terminal, plain lines elsewhere; and always the log file."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from us3l.files import append_lines
from us3l.progress import PLAIN_EVERY, clock
from us3l.training.monitor import Gauges


class Display:
    def __init__(self, console: Console, log: Path | None, costs: list[float], start: int) -> None:
        """`costs` says how dear each step is, relative to the others; `start` is the first step to come."""
        self.console = console
        self.log = log
        self.remaining = sum(costs[start:])
        self.costs = costs
        self.seconds = self.done = self.last_line = 0.0
        self.recent = [0, 0.0]  # images and seconds since the last look
        self.gauges: Gauges = {}
        self.progress = Progress(BarColumn(), TextColumn("{task.description}"), console=console)
        self.task = self.progress.add_task("starting", total=len(costs), completed=start)
        self.live = Live(console=console, refresh_per_second=4) if console.is_terminal else None

    def __enter__(self) -> Display:
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.stop()

    def say(self, text: str, style: str | None = None) -> None:
        """A message that stays."""
        self.console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
        self.record(text)

    def record(self, text: str) -> None:
        if self.log:
            append_lines(self.log, [f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}"])

    def step(self, step: int, seconds: float, images: int, epoch: str, losses: str) -> None:
        """One step is done; `losses` is empty when they were not fetched from the device."""
        self.seconds += seconds
        self.done += self.costs[step]
        self.recent = [self.recent[0] + images, self.recent[1] + seconds]
        if not losses:
            return
        left = (self.remaining - self.done) * self.seconds / self.done
        speed = self.recent[0] / self.recent[1]
        self.recent = [0, 0.0]
        text = f"epoch {epoch}  step {step + 1}/{len(self.costs)}  {speed:.0f} images/s  {clock(left)} left"
        self.progress.update(self.task, completed=step + 1, description=text)
        if self.live:
            self.live.update(Group(self.progress, losses, self.table()))
        elif time.monotonic() - self.last_line > PLAIN_EVERY or step + 1 == len(self.costs):
            self.last_line = time.monotonic()
            self.say(f"{text}  {losses}")

    def show(self, gauges: Gauges) -> None:
        self.gauges = gauges
        parts = []
        for width, values in gauges.items():
            knn = f"kNN {values['knn']:.1f} %, " if "knn" in values else ""
            turn = f", turn {values['turn']:.2f}" if "turn" in values else ""
            parts.append(f"{width:g}x {knn}spread {values['spread']:.2f}{turn}")
        line = "  ".join(parts)
        if self.live:
            self.record(line)
        else:
            self.say(line)

    def table(self) -> Table:
        table = Table("width", "kNN %", "spread (0: collapsed)", "turn of guidance", box=None)
        for width, values in self.gauges.items():
            knn = f"{values['knn']:.1f}" if "knn" in values else "no labels"
            turn = f"{values['turn']:.2f}" if "turn" in values else ""
            table.add_row(f"{width:g}x", knn, f"{values['spread']:.2f}", turn)
        return table
