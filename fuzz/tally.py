"""A file that keeps how far the fuzzing of each kind has come, so that it can go on later."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from fuzz.run import Report
from us3l.system.files import write_json


class Tally:
    """Reports by kind and form; without a file they are kept in memory alone."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.reports: dict[str, Report] = {}
        if path and path.exists():
            self.reports = {name: _report(values) for name, values in json.loads(path.read_text()).items()}

    def report(self, new: Report) -> Report:
        """The one that is kept of this kind and form, or else this new one."""
        kept = self.reports.setdefault(f"{new.kind} {new.form}", new)
        if kept.seed != new.seed:
            raise SystemExit(f"{self.path}: {new.kind} was begun with --seed {kept.seed}")
        return kept

    def save(self) -> None:
        if self.path:
            values = {name: vars(report) | {"paused": []} for name, report in self.reports.items()}
            write_json(self.path, values)


def _report(values: dict) -> Report:
    return Report(**values | {"outcomes": Counter(values["outcomes"]), "paused": set()})
