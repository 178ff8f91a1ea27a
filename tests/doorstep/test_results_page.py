"""The first tables of docs/results.md are what the files of figures say, and their runs have the settings of today."""

from pathlib import Path

import pytest

from us3l.paper.plans import plan_table
from us3l.paper.workspace import Found
from us3l.reporting.reproduction import cell

ROOT = Path(__file__).parents[2]
SCALES = ("small", "mini")


@pytest.mark.parametrize("scale", SCALES)
def test_the_table_of_every_width_is_as_measured(scale):
    plan = plan_table("every-width", scale, known=ROOT / "benchmarks" / "figures" / f"{scale}.json", absent_too=True)
    page = (ROOT / "docs" / "results.md").read_text()
    rows: dict[str, list[Found]] = {}
    for found in plan.place.collect(plan.figures):
        assert found.values, (
            f"{found.entry.label} at {found.entry.width:g}x: its settings have changed; measure it again"
        )
        rows.setdefault(found.entry.label, []).append(found)
    assert len(rows) == 4
    for label, figures in rows.items():
        cells = " | ".join(f"{cell(one, 'ours')}, {cell(one, 'kNN')}" for one in figures)
        seeds = {len(one.values) for one in figures}
        assert len(seeds) == 1
        line = f"| {label} | {seeds.pop()} | {cells} |"
        assert line in page.replace("**", "").replace(" ± ", "±"), line
