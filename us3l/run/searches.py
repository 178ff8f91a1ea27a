"""What a search found: search/NAME.json and NAME.csv in a run's folder, and NAME.scores.jsonl while it is at work."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from us3l import __version__
from us3l.run.checks import check_version, demand
from us3l.run.folder import Run
from us3l.run.identity import clean
from us3l.run.weights import Weights, check_weights
from us3l.system.errors import UserError
from us3l.system.files import append_lines, finite, parse_json, read_json, read_lines, write_json, write_text
from us3l.width import Width

VERSION = 1
SCORES = ".scores.jsonl"
FIGURES = ("macs", "params", "size_mb", "memory_mb", "latency_ms")


@dataclass(frozen=True)
class FoundNetwork:
    """One network that a search scored."""

    width: Width
    score: float
    """In percent: how far it agrees with the full network."""
    figures: dict[str, float]
    """What it costs, by the names of `FIGURES`; a latency is added up from its blocks'."""
    confirmed: float | None = None
    """The score on other images, of finalists."""
    measured_ms: float | None = None
    """The median latency as measured, of finalists, where latency was a budget."""

    @property
    def uniform(self) -> bool:
        """Whether it is a plain width."""
        return self.width.plain


@dataclass(frozen=True)
class SearchRecord:
    """What was searched, how, and what was found."""

    name: str
    """Of its files."""
    budgets: dict[str, float]
    settings: dict[str, Any]
    """Score, number of candidates, seed and the like: with the same ones a search finds the same."""
    data: str
    images: int
    """On which networks were scored."""
    image_size: int
    best: Width
    """The best sub-network within the budgets."""
    fits: bool
    """Whether it keeps them, also as measured."""
    networks: list[FoundNetwork] = field(default_factory=list)
    """All that were scored."""
    seconds: float = 0.0
    weights: Weights | None = None
    us3l: str | None = None
    torch: str | None = None
    date: str | None = None

    @property
    def figure(self) -> str:
        """The cost that the front is about: that of the first budget."""
        return next(iter(self.budgets))

    def at(self, width: Width) -> FoundNetwork | None:
        """What was found for a width; None if it was not scored."""
        return next((one for one in self.networks if one.width == width), None)

    def front(self, uniform: bool | None = None) -> list[FoundNetwork]:
        """The networks that no cheaper one beats, cheapest first.

        Args:
            uniform: Only plain widths, or only sub-networks whose stages differ (default: all).
        """
        some = [one for one in self.networks if uniform in (None, one.uniform)]
        front: list[FoundNetwork] = []
        for one in sorted(some, key=lambda one: (one.figures[self.figure], -one.score)):
            if not front or one.score > front[-1].score:
                front.append(one)
        return front

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A dictionary per network, the best score first."""
        on_front = {one.width for one in self.front()}
        return [
            {"width": one.width, "score": one.score, "confirmed": one.confirmed}
            | {name: one.figures[name] for name in FIGURES if name in one.figures}
            | ({"measured_ms": one.measured_ms} if "latency_ms" in self.budgets else {})
            | {"front": one.width in on_front, "best": one.width == self.best}
            for one in sorted(self.networks, key=lambda one: -one.score)
        ]


# Files


def search_name(budgets: Mapping[str, float]) -> str:
    """The usual name of a search.

    >>> search_name({"macs": 5e6})
    'macs-5e+06'
    """
    return clean("-".join(f"{name}-{budget:g}" for name, budget in budgets.items()))


def search_file(run: Run, name: str) -> Path:
    """Where a search of that name is kept."""
    return run.search_folder / f"{clean(name)}.json"


def write_search(run: Run, record: SearchRecord) -> SearchRecord:
    """Write NAME.json and NAME.csv; the record as written, with weights, versions and date."""
    date = f"{datetime.now().astimezone():%FT%T%z}"
    made = replace(record, weights=run.weights, us3l=__version__, torch=version("torch"), date=date)
    path = search_file(run, record.name)
    content = {"version": VERSION, **asdict(made)}
    del content["name"]
    write_json(path, content)
    text = io.StringIO()
    table = csv.DictWriter(text, list(made.rows[0]), lineterminator="\n")
    table.writeheader()
    table.writerows(made.rows)
    write_text(path.with_suffix(".csv"), text.getvalue())
    return made


def read_searches(run: Run, check: bool = True) -> dict[str, SearchRecord]:
    """All searches of a run, by name, the newest last.

    Args:
        run: The run.
        check: Whether one of other weights than the model's is an error.
    """
    paths = [path for path in sorted(run.search_folder.glob("*.json")) if not path.name.startswith(".")]
    found = [read_search(run, path.stem, check) for path in paths]
    return {record.name: record for record in sorted(found, key=lambda record: record.date or "")}


def read_search(run: Run, name: str, check: bool = True) -> SearchRecord:
    """One search by its name; see `read_searches`."""
    path = search_file(run, name)
    content = read_json(path)
    check_version(path, content.pop("version", None), (VERSION,), VERSION)
    try:
        record = _record(path.stem, content)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} is not as us3l search writes it ({error}): search again, with `overwrite`") from None
    if check and run.model.is_dir():
        check_weights(path, record.weights, run.weights, "search again, with `overwrite`")
    return record


def _record(name: str, content: dict[str, Any]) -> SearchRecord:
    known = {one.name for one in fields(SearchRecord)} - {"name"}
    values = {key: value for key, value in content.items() if key in known}
    for key in ("data", "us3l", "torch", "date"):
        demand(isinstance(values.get(key), str), key, values.get(key))
    for key in ("images", "image_size", "seconds"):
        demand(finite(values[key]) and values[key] >= 0, key, values[key])
    demand(isinstance(values["settings"], dict), "settings", values["settings"])
    demand(isinstance(values["fits"], bool), "fits", values["fits"])
    values["budgets"] = _figures(values["budgets"])
    demand(bool(values["budgets"]), "budgets", values["budgets"])
    values["best"] = Width.from_plain(values["best"])
    values["networks"] = [_found(one, next(iter(values["budgets"]))) for one in values["networks"]]
    values["weights"] = Weights.of(values["weights"])
    record = SearchRecord(name, **values)
    demand(record.at(record.best) is not None, "best", content["best"])
    return record


def _found(value: dict[str, Any], needed: str) -> FoundNetwork:
    demand(value.keys() == {one.name for one in fields(FoundNetwork)}, "a network", value)
    for name in ("score", "confirmed", "measured_ms"):
        demand(finite(value[name]) or (value[name] is None and name != "score"), name, value[name])
    figures = _figures(value["figures"])
    demand(needed in figures, "figures", value["figures"])
    return FoundNetwork(**value | {"width": Width.from_plain(value["width"]), "figures": figures})


def _figures(value: Any) -> dict[str, float]:
    good = isinstance(value, dict) and all(name in FIGURES and finite(one) and one > 0 for name, one in value.items())
    demand(good, "figures", value)
    return value


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
