"""The tables of docs/lab/pretrained.md are what the file of figures says."""

import json
from pathlib import Path

import pytest

from benchmarks.slim import LABELLED, summary

ROOT = Path(__file__).parents[2]
MEASURES = ("knn, photos", "linear, photos", "ImageNet's classifier, ten classes", "linear, cifar10 at 64", LABELLED)


@pytest.mark.parametrize("measure", MEASURES)
def test_tables_are_as_measured(measure: str) -> None:
    content = json.loads((ROOT / "benchmarks" / "figures" / "slim.json").read_text())
    page = (ROOT / "docs" / "lab" / "pretrained.md").read_text().replace("**", "")
    tables = summary(content["results"])
    rows = tables[tables.index(f"{measure}, %") :].split("\n\n")[1].splitlines()[2:]
    assert rows
    for row in rows:
        assert row in page
