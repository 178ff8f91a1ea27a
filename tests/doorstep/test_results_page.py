"""docs/results.md and docs/lab/ say what the files of figures say, and their runs have the settings of today."""

from pathlib import Path

import pytest

from benchmarks.claims_page import PLACES, replaced, tables
from us3l.paper.plans import plan_table
from us3l.paper.workspace import CellResult
from us3l.reporting.reproduction import cell_text

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "docs" / "results.md", *sorted((ROOT / "docs" / "lab").glob("results-*.md")))
TABLES = {
    ("every-width", "small"): 4,
    ("every-width", "mini"): 4,
    ("app-ablation", "small"): 7,
    ("plus-ablation", "small"): 9,
    ("backbones", "mini"): 6,
    ("elastic", "small"): 3,
}
"""And how many of their rows are on the pages."""


@pytest.mark.parametrize(("table", "scale"), TABLES)
def test_tables_are_as_measured(table, scale):
    plan = plan_table(table, scale, known=ROOT / "benchmarks" / "figures" / f"{scale}.json", absent_too=True)
    pages = "\n".join(page.read_text() for page in PAGES).replace("**", "").replace(" ± ", "±")
    rows: dict[str, list[CellResult]] = {}
    for found in plan.place.collect(plan.cells):
        if found.values:  # else it was not run, or its settings have changed since
            rows.setdefault(found.cell.label, []).append(found)
    assert len(rows) == TABLES[table, scale], "the settings of some rows have changed: measure them again"
    for label, figures in rows.items():
        assert [one.cell.width for one in figures] == [1, 0.75, 0.5, 0.25]
        (seeds,) = {len(one.values) for one in figures}
        cells = " | ".join(f"{cell_text(result, 'ours')}, {cell_text(result, 'kNN')}" for result in figures)
        lines = [f"| {label} | {seeds} | {cells} |"] + [f"| {label} | {cells} |"] * (seeds == 1)
        assert any(line in pages for line in lines), lines[0]


def test_claims_and_verdicts_are_those_of_the_figures(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # away from runs
    for name, table in tables().items():
        page = (ROOT / PLACES[name]).read_text()
        assert replaced(page, name, table) == page, "call python -m benchmarks.claims_page"
        assert table in page
