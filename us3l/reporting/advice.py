"""When can I stop? What the gauges that need no labels say about it.

The rule is in docs/evaluate.md. It compares the last quarter of a run with the one before it, gauge by gauge.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from us3l.run.evaluations import QUALITIES
from us3l.run.training_log import Gauges, Record, StepRecord
from us3l.training.monitor import COLLAPSED

LIMIT = 3.0
"""Percent: a gauge that changes by less has settled."""
FALL = 20.0
"""Percent: a gauge that falls by more may be a collapse."""
LEAST = 2
"""Looks at the gauges in each of the two quarters; with fewer nothing can be said."""
LONGER = 2
"""Times the epochs to try next."""


@dataclass(frozen=True)
class Trend:
    """How one gauge of one width changed from the third quarter of a run to the last, in percent."""

    gauge: str
    width: str
    change: float
    noise: float
    """What it may have changed by chance (two deviations), judged by how it jumps from look to look."""

    @property
    def clear(self) -> bool:
        """Whether it changed, and not only by chance."""
        return abs(self.change) > max(LIMIT, self.noise)

    def __str__(self) -> str:
        moved = "rose" if self.change > 0 else "fell"
        return f"{QUALITIES[self.gauge]} at {self.width}x {moved} by {abs(self.change):.2g} %"


@dataclass(frozen=True)
class Advice:
    """An answer, and why."""

    verdict: str
    """One of: short, collapsing, changing, noisy, settled."""
    text: str
    longer: bool = False
    """Whether a longer run is the next thing to try."""


def advise(records: Sequence[Record], finished: bool) -> Advice | None:
    """Return whether to stop, by what a run recorded; None if it has no gauges that need no labels.

    Args:
        records: Of the run, in their order.
        finished: Whether the run has ended; else the quarters are those of what is done of it.
    """
    looks = [record for record in records if isinstance(record, Gauges)]
    if not any(gauge in values for look in looks for values in look.gauges.values() for gauge in QUALITIES):
        return None
    so_far = "" if finished else "so far, "
    if gone := [width for width, values in looks[-1].gauges.items() if values.get("spread", 1.0) < COLLAPSED]:
        widths = ", ".join(f"{width}x" for width in gone)
        return Advice("collapsing", f"Stop: the embeddings have collapsed at {widths}. More steps will not help.")
    trends = all_trends(looks)
    if not trends:
        return Advice(
            "short",
            f"Too early to tell: there are {len(looks)} looks at the gauges, and both the third and the last quarter "
            f"of the run need {LEAST}.",
        )
    falling = min(trends, key=lambda trend: trend.change)
    if falling.clear and falling.change < -FALL:
        return Advice(
            "collapsing",
            f"Look before you go on: {so_far}from the third quarter to the last, {falling}. The features lose "
            "directions, as they do in a collapse.",
        )
    if moving := [trend for trend in trends if trend.clear]:
        most = max(moving, key=lambda trend: abs(trend.change))
        what = f"{so_far}from the third quarter to the last, {most}"
        if not finished:
            return Advice("changing", f"Not yet: {what}.")
        start = "Train longer" if most.change > 0 else "It has not settled"
        return Advice("changing", f"{start}: {what}.", longer=True)
    noisiest = max(trends, key=lambda trend: trend.noise)
    if noisiest.noise > LIMIT:
        return Advice(
            "noisy",
            f"The gauges cannot tell: {QUALITIES[noisiest.gauge]} at {noisiest.width}x jumps from look to look by more "
            "than it changes.",
        )
    largest = max(abs(trend.change) for trend in trends)
    quiet = f"from the third quarter to the last, no gauge of any width changed by more than {largest:.1f} %"
    if not finished:
        return Advice(
            "settled",
            f"Nearly: {so_far}{quiet}. But the learning rate is still at {learning_rate(records):.0%} of its highest, "
            "and what its fall will change is not seen yet: let the run end.",
        )
    return Advice(
        "settled",
        f"The gauges have settled: {quiet}. More of these last steps would change little, so you can stop here. That "
        "does not mean that nothing better is possible: the learning rate falls to 0 along a cosine, which calms every "
        "curve at its end. What a longer schedule brings, only a longer run can show.",
        longer=True,
    )


def all_trends(looks: Sequence[Gauges]) -> list[Trend]:
    """Return the trend of every gauge of every width that was looked at often enough."""
    trends = []
    last = looks[-1].step + 1
    for gauge in QUALITIES:
        for width in looks[-1].gauges:
            points = [
                ((look.step + 1) / last, value)
                for look in looks
                if (value := look.gauges.get(width, {}).get(gauge)) is not None and math.isfinite(value)
            ]
            if trend := trend_of(gauge, width, points):
                trends.append(trend)
    return trends


def trend_of(gauge: str, width: str, points: Sequence[tuple[float, float]]) -> Trend | None:
    """Return the trend of a curve over shares of the run; None if it has too few points, or is 0."""
    third = [value for place, value in points if 0.5 <= place < 0.75]
    last = [value for place, value in points if place >= 0.75]
    if min(len(third), len(last)) < LEAST or fmean(third) <= 0:
        return None
    # Second differences know no steady rise: those of independent jumps of deviation s have a mean square of 6 s^2.
    values = third + last
    bends = [a - 2 * b + c for a, b, c in zip(values, values[1:], values[2:], strict=False)]
    jump = math.sqrt(fmean(bend**2 for bend in bends) / 6)
    noise = 2 * jump * math.sqrt(1 / len(third) + 1 / len(last))
    level = fmean(third) / 100
    return Trend(gauge, width, (fmean(last) - fmean(third)) / level, noise / level)


def learning_rate(records: Sequence[Record]) -> float:
    """Return the last learning rate, as a share of the highest."""
    rates = [record.lr for record in records if isinstance(record, StepRecord)]
    return rates[-1] / max(rates) if rates and max(rates) > 0 else 1.0


def longer_run(folder: Path, config_file: Path, epochs: int, max_steps: int | None = None) -> str:
    """Return the call that trains a run with the same settings for longer, into a folder beside it."""
    length = f"max_steps={LONGER * max_steps}" if max_steps else f"epochs={LONGER * epochs}"
    beside = str(folder.with_name(f"{folder.name}-longer")) if folder.name else "longer"
    return f"`us3l.pretrain(config={str(config_file)!r}, {length}, out={beside!r})`"
