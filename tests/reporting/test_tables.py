import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from tests.made_runs import result
from us3l.reporting.tables import COLUMNS, LEAST_NEEDED, few_labels_table, human, results_table, uncertainty
from us3l.run.evaluations import METRICS, FewLabels, Score

FLOORS = {"knn_untrained": 32.0, "linear_untrained": 39.0}
FULL = result(1.0, 11_173_962, 1_819_066_368, knn=60.0, linear=72.25, **FLOORS)
SLIM = result(0.921875, 698_372, 34_790_720, knn=50.0, linear=61.0, knn_untrained=50.5, linear_untrained=36.0)


def text(results, width=80, terminal=False, **options):
    environment = {"TERM": "xterm"}  # whatever the test run's own terminal is
    written = io.StringIO()
    console = Console(file=written, width=width, force_terminal=terminal, _environ=environment)
    console.print(results_table(results, **options))
    return written.getvalue()


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1.00 k"),
        (9_994, "9.99 k"),
        (99_960, "100 k"),
        (999_499, "999 k"),
        (999_500, "1.00 M"),
        (11_173_962, "11.2 M"),
        (1_819_066_368, "1.82 G"),
        (4.1e12, "4.10 T"),
    ],
)
def test_human_units(count, expected):
    assert human(count) == expected


def test_every_number_stands_in_its_row():
    lines = text([FULL, SLIM]).splitlines()
    full, slim = (next(line for line in lines if width in line) for width in (" 1x", "0.9219x"))
    assert full.split() == "1x 11.2 M 1.82 G 60.0 ±2.0 32.0 +28.0 72.2 ±2.0 39.0 +33.2".split()
    assert slim.split() == "0.9219x 698 k 34.8 M 50.0 ±2.0 50.5 -0.5 61.0 ±2.0 36.0 +25.0".split()


FLOORED = {f"{metric}{end}": 100.0 for metric in METRICS for end in ("", "_untrained")}
TOP5 = {f"{metric}_top5": 100.0 for metric in METRICS}
QUALITY = {"rankme": 2048.5, "lidar": 2048.5, "agreement": 100.0}


@pytest.mark.parametrize(
    ("figures", "kept", "gains"),
    [
        ({name: 100.0 for name in FLOORED if not name.startswith("finetuned")}, 4, 2),
        ({"finetuned": 100.0, "finetuned_top5": 100.0}, 2, 0),
        ({"knn": 100.0, "linear": 100.0, "knn_top5": 100.0, "linear_top5": 100.0}, 4, 0),
        (QUALITY, 3, 0),
        (FLOORED | TOP5 | QUALITY, 3, 2),  # of all columns that there are, the accuracies and some gains
    ],
)
def test_the_table_fits_80_columns_with_all_columns_and_intervals_and_the_widest_of_numbers(figures, kept, gains):
    """A column too many broke the table without a word, and tests without intervals stayed green."""
    rows = [result(0.921875, 999_000_000, 999_000_000, reach=15.0, **figures)]
    plain = text(rows, title="digits")
    assert "digits" in plain
    assert "…" not in plain
    assert max(map(len, plain.splitlines())) <= 80
    cells = next(line for line in plain.splitlines() if "0.9219x" in line).split()
    accuracies = sum(name in METRICS for name in figures)
    assert cells.count("±15.0") == accuracies
    assert sum(cell in ("100.0", "2048.5") for cell in cells) == kept
    assert cells.count("+0.0") == gains


def test_columns_without_room_are_named():
    everything = " ".join(text([result(1.0, **dict.fromkeys(FLOORED | TOP5 | QUALITY, 100.0))]).split())
    assert re.search("no room here for .*kNN, top 5; .* agreement", everything)
    assert "no room" not in text([result(1.0, linear=50.0)])


def test_a_column_for_every_figure_of_a_width():
    """The page shows them all; what only a program needs is named here."""
    rows = result(1.0, **FLOORED, **TOP5, **QUALITY).row
    extra = {name for name in rows if name.endswith(("_low", "_high"))} | {"macs_with_norms", "bytes"}
    assert rows.keys() - extra == {column.name for column in COLUMNS if not column.name.endswith("_gain")}
    assert set(LEAST_NEEDED) < {column.name for column in COLUMNS}


def test_it_is_plain_when_not_a_terminal():
    assert "\x1b" not in text([FULL, SLIM])
    assert "\x1b" in text([FULL], terminal=True)


def test_columns_without_numbers_are_dropped():
    unlabelled = text([result(0.5, 1000, 2000)])
    assert unlabelled.split()[:3] == ["width", "params", "MACs"]
    assert not any(word in unlabelled for word in ("kNN", "linear", "trained", "gain", "None"))
    no_floor = text([result(0.5, 1000, 2000, knn=50.0)])
    assert "kNN" in no_floor
    assert not any(word in no_floor for word in ("linear", "trained", "gain"))
    # One number is enough to keep a column; the others stay empty.
    mixed = text([FULL, result(0.5, 1000, 2000)])
    assert "linear" in mixed
    assert "None" not in mixed


def test_no_results_make_an_empty_table():
    assert results_table([]).row_count == 0
    text([])


def test_few_labels_with_their_deviation():
    found = [
        FewLabels(width, share, int(1000 * share), Score(10 * width + share, None, 0, 100, (), 1.25, 3))
        for width in (1.0, 0.5)
        for share in (0.01, 0.1)
    ]
    written = io.StringIO()
    console = Console(file=written, width=80)
    console.print(few_labels_table(found))
    lines = written.getvalue().splitlines()
    assert any("0.01 of them" in line for line in lines)
    assert any("100 images" in line for line in lines)
    assert any(line.split() == ["0.5x", "5.0", "±", "1.2", "5.1", "±", "1.2"] for line in lines)


def test_uncertainty():
    seeds = replace(FULL.scores["linear"], deviation=0.7, seeds=3)
    rows = [replace(FULL, scores=FULL.scores | {"linear": seeds})]
    assert "± is the 95 % interval for 1,234 test images" in uncertainty(rows, 1234)
    assert "at most 0.7" in uncertainty(rows, 10)
