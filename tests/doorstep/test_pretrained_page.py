"""The tables of docs/pretrained.md are what the file of figures says."""

import json
from pathlib import Path

import pytest

from benchmarks.slim import summary

ROOT = Path(__file__).parents[2]
LABELS = {
    "cut": "cut and calibrated, not trained",
    "sorted": "the same, channels in order of importance",
    "varied": "the same, importance measured on images",
    "slim": "`--recipe slim`",
    "alone": "each width distilled alone",
    "scratch": "US3L-plus from random weights",
    "together": "`--recipe slim --update per-batch`",
    "mixed": "`--recipe slim --update per-batch --mixed 0.5 --mixed-depth 0.5`",
    "resnet-taught": "ResNet-18 taught by it (`--teacher`)",
    "resnet-scratch": "ResNet-18 by US3L-plus",
}
MEASURES = ("knn, photos", "linear, photos", "ImageNet's classifier, ten classes", "linear, cifar10 at 64")


@pytest.mark.parametrize("measure", MEASURES)
def test_tables_are_as_measured(measure: str) -> None:
    content = json.loads((ROOT / "benchmarks" / "figures" / "slim.json").read_text())
    page = (ROOT / "docs" / "pretrained.md").read_text().replace("**", "")
    tables = summary(content["results"])
    rows = tables[tables.index(f"{measure}, %") :].split("\n\n")[1].splitlines()[2:]
    assert rows
    for row in rows:
        kind, cells = row.removeprefix("| ").split(" | ", 1)
        assert f"| {LABELS[kind]} | {cells}" in page, row
