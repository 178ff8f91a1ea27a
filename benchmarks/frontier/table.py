"""Our best sub-network under the cost of each rival, as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Row = dict[str, Any]
"""A network's name, its costs and its scores."""
SCORES = ("photos", "photos linear", "pets", "pets linear")


def best_under(rival: Row, ours: list[Row], score: str, milliseconds: Mapping[str, float]) -> Row | None:
    """Return our sub-network of the highest score that costs no more than a rival, by multiply-accumulates and, where
    both were timed, by latency; None if there is none.

    >>> ours = [{"network": "0.25x@128", "mmacs": 12, "pets": 60}, {"network": "0.5x@128", "mmacs": 31, "pets": 70}]
    >>> best_under({"network": "small", "mmacs": 14}, ours, "pets", {})["network"]
    '0.25x@128'
    >>> best_under({"network": "small", "mmacs": 40}, ours, "pets", {"small": 1.0, "0.5x@128": 1.1})["network"]
    '0.25x@128'
    """
    allowed = [
        row
        for row in ours
        if row["mmacs"] <= rival["mmacs"]
        and milliseconds.get(row["network"], 0.0) <= milliseconds.get(rival["network"], float("inf"))
    ]
    return max(allowed, key=lambda row: row[score], default=None)


def table(found: Mapping[str, Any]) -> str:
    """Return a Markdown table: each rival, and for each score our best sub-network that costs no more."""
    ours, milliseconds = found.get("ours", []), found.get("milliseconds", {})
    lines = [f"| network | MMACs | ms | {' | '.join(SCORES)} |", "| --- " * (3 + len(SCORES)) + "|"]
    for rival in found.get("rivals", []):
        name = rival["network"]
        cells = [name, f"{rival['mmacs']:g}", str(milliseconds.get(name, "")), *(str(rival[score]) for score in SCORES)]
        lines.append(f"| {' | '.join(cells)} |")
        best = [best_under(rival, ours, score, milliseconds) for score in SCORES]
        shown = [f"{row[score]} ({row['network']})" if row else "" for row, score in zip(best, SCORES, strict=True)]
        if any(shown):
            lines.append(f"| ours at no more | | | {' | '.join(shown)} |")
    return "\n".join(lines)
