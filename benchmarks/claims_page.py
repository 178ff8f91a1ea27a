"""The tables of docs/results.md and docs/lab/results-tuning.md, from benchmarks/figures/claims.json.

python -m benchmarks.claims_page
"""

from __future__ import annotations

import re
from pathlib import Path

from us3l.paper.plans import plan_table
from us3l.reporting.claim_tables import claim_notes

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "benchmarks" / "figures" / "claims.json"
PLACES = {"claims": "docs/results.md", "main": "docs/results.md", "tuning": "docs/lab/results-tuning.md"}
"""The page of each table of `claim_notes`, by the name of the comment above it."""


def tables() -> dict[str, str]:
    """Return the tables by their names, as Markdown."""
    plan = plan_table("claims", "small", known=FIGURES, absent_too=True)
    notes = claim_notes(plan.place, plan.place.collect(plan.cells))
    return {name: str(table) for name, table in zip(PLACES, notes, strict=True)}


def replaced(page: str, name: str, table: str) -> str:
    """Return a page with a new table between the comments that mark its place."""
    start, end = f"<!-- {name} -->\n", "<!-- end -->"
    return re.sub(f"{re.escape(start)}.*?{end}", lambda _: f"{start}\n{table}\n\n{end}", page, flags=re.DOTALL)


def main() -> None:
    for name, table in tables().items():
        path = ROOT / PLACES[name]
        path.write_text(replaced(path.read_text(encoding="utf-8"), name, table), encoding="utf-8")


if __name__ == "__main__":
    main()
