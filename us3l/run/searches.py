"""What a search found: search/NAME.json and NAME.csv in a run's folder, and NAME.scores.jsonl while it is at work."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from us3l.costs import pareto
from us3l.run.folder import Run
from us3l.run.identity import clean
from us3l.run.records import LARGEST, Amount, Number, StampedRecord, Store, WholeNumber, write_csv
from us3l.system.errors import UserError
from us3l.system.files import append_lines, finite, parse_json, read_lines, write_text
from us3l.width import Width

SCORES = ".scores.jsonl"
FIGURES = ("macs", "params", "size_mb", "memory_mb", "latency_ms")
Figures = dict[str, Annotated[float, Meta(gt=0, le=LARGEST)]]


@dataclass(frozen=True)
class ScoredNetwork:
    """One network that a search scored."""

    width: Width
    score: Number
    """In percent: how far it agrees with the full network."""
    figures: Figures
    """What it costs, by the names of `FIGURES`; a latency is added up from its blocks'."""
    confirmed: Number | None = None
    """The score on other images, of finalists."""
    measured_ms: Number | None = None
    """The median latency as measured, of finalists, where latency was a budget."""

    @property
    def uniform(self) -> bool:
        """Whether it is a plain width."""
        return self.width.plain


@dataclass(frozen=True)
class SearchRecord(StampedRecord):
    """What was searched, how, and what was found."""

    budgets: Figures
    settings: dict[str, Any]
    """Score, number of candidates, seed and the like: with the same ones a search finds the same."""
    data: str
    images: WholeNumber
    """On which networks were scored."""
    image_size: WholeNumber
    best: Width
    """The best sub-network within the budgets."""
    fits: bool
    """Whether it keeps them, also as measured."""
    networks: list[ScoredNetwork] = field(default_factory=list)
    """All that were scored."""
    seconds: Amount = 0.0

    def __post_init__(self) -> None:
        if not self.budgets or not self.budgets.keys() <= set(FIGURES):
            raise ValueError(f"budgets: expected some of {', '.join(FIGURES)}, got {', '.join(self.budgets):.60}")
        if any(self.figure not in network.figures for network in self.networks):
            raise ValueError(f"networks: expected {self.figure} of each")
        if self.at(self.best) is None:
            raise ValueError(f"best: {self.best} is not one of the networks")

    @property
    def figure(self) -> str:
        """The cost that the front is about: that of the first budget."""
        return next(iter(self.budgets))

    def at(self, width: Width) -> ScoredNetwork | None:
        """What was found for a width; None if it was not scored."""
        return next((network for network in self.networks if network.width == width), None)

    def front(self, uniform: bool | None = None) -> list[ScoredNetwork]:
        """Return the networks that no cheaper network beats, cheapest first.

        Args:
            uniform: Only plain widths, or only sub-networks whose stages differ (default: all).
        """
        some = [network for network in self.networks if uniform in (None, network.uniform)]
        return [some[place] for place in pareto([(network.figures[self.figure], network.score) for network in some])]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A dictionary per network, the best score first."""
        on_front = {network.width for network in self.front()}
        return [
            {"width": network.width, "score": network.score, "confirmed": network.confirmed}
            | {name: network.figures[name] for name in FIGURES if name in network.figures}
            | ({"measured_ms": network.measured_ms} if "latency_ms" in self.budgets else {})
            | {"front": network.width in on_front, "best": network.width == self.best}
            for network in sorted(self.networks, key=lambda network: -network.score)
        ]


# Files


def search_name(budgets: Mapping[str, float]) -> str:
    """The usual name of a search.

    >>> search_name({"macs": 5e6})
    'macs-5e+06'
    """
    return clean("-".join(f"{name}-{budget:g}" for name, budget in budgets.items()))


SEARCHES = Store(SearchRecord, "search_folder", 1, "search")


def write_search(run: Run, record: SearchRecord) -> SearchRecord:
    """Write NAME.json and NAME.csv; return the record as written."""
    written = SEARCHES.write(run, record)
    write_csv(SEARCHES.file(run, record.name).with_suffix(".csv"), written.rows)
    return written


# A search at work


class ScoreLog:
    """Scores and times of blocks as a search finds them: one that was stopped goes the same way again.

    Args:
        path: The file.
        about: All that the scores depend on; what was begun with something else is not continued.
    """

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        self.path = path
        self.scores: dict[str, float] = {}
        self.times: dict[str, float] = {}
        if not path.exists():
            append_lines(path, [json.dumps(about)])
            return
        lines = list(self._lines())
        if not lines or lines[0] != json.loads(json.dumps(about)):
            raise UserError(f"{path} was begun with other settings: search with those, or with `overwrite`")
        write_text(path, "".join(json.dumps(line) + "\n" for line in lines))
        for line in lines[1:]:
            kind = self.scores if "score" in line else self.times
            if isinstance(line.get("name"), str) and finite(value := line.get("score", line.get("ms"))):
                kind[line["name"]] = value

    def _lines(self) -> Iterator[dict[str, Any]]:
        for line in read_lines(self.path):
            try:
                value = parse_json(line)
            except ValueError:
                return  # half written, when it was stopped
            if isinstance(value, dict):
                yield value

    def discard(self) -> None:
        """Leave nothing behind, not even an empty folder."""
        self.path.unlink()
        with suppress(OSError):
            self.path.parent.rmdir()

    def keep_score(self, name: str, score: float) -> None:
        self.scores[name] = score
        append_lines(self.path, [json.dumps({"name": name, "score": score})])

    def keep_time(self, name: str, ms: float) -> None:
        append_lines(self.path, [json.dumps({"name": name, "ms": ms})])
