import io
import json
from dataclasses import asdict

import pytest
from rich.console import Console

from us3l.reporting.tables import comparison, few_labels_table, human, results_table, uncertainty
from us3l.run.evaluations import FewLabels, Score, WidthResult, from_plain
from us3l.system.errors import UserError

FULL = WidthResult(1.0, 11_173_962, 1_819_066_368, 60.0, 72.25, 32.0, 39.0)
SLIM = WidthResult(0.921875, 698_372, 34_790_720, 50.0, 61.0, 50.5, 36.0)


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
    assert full.split() == ["1x", "11.2", "M", "1.82", "G", "60.0", "32.0", "+28.0", "72.2", "39.0", "+33.2"]
    assert slim.split() == ["0.9219x", "698", "k", "34.8", "M", "50.0", "50.5", "-0.5", "61.0", "36.0", "+25.0"]


def test_fits_80_columns_and_is_plain_when_not_a_terminal():
    plain = text([FULL, SLIM], title="digits")
    assert "digits" in plain
    assert "…" not in plain
    assert "\x1b" not in plain
    assert max(map(len, plain.splitlines())) <= 80
    assert "\x1b" in text([FULL], terminal=True)


def test_columns_without_numbers_are_dropped():
    unlabelled = text([WidthResult(0.5, 1000, 2000)])
    assert unlabelled.split()[:3] == ["width", "params", "MACs"]
    assert not any(word in unlabelled for word in ("kNN", "linear", "trained", "gain", "None"))
    no_floor = text([WidthResult(0.5, 1000, 2000, knn=50.0)])
    assert "kNN" in no_floor
    assert not any(word in no_floor for word in ("linear", "trained", "gain"))
    # One number is enough to keep a column; the others stay empty.
    mixed = text([FULL, WidthResult(0.5, 1000, 2000)])
    assert "linear" in mixed
    assert "None" not in mixed


def test_no_results_make_an_empty_table():
    assert results_table([]).row_count == 0
    text([])


def test_results_survive_json():
    results = [FULL, WidthResult(0.25, 5, 7)]
    assert from_plain(json.loads(json.dumps([asdict(result) for result in results]))) == results


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ("[]", "must be a list"),
        ({"width": 1}, "must be a list"),
        ([3], "entry 0: expected a dictionary"),
        ([{"width": 1.0, "params": 5}], "macs must be a whole number above 0, got None"),
        ([{"width": 0.5, "params": 5, "macs": 0}], "macs must be a whole number above 0, got 0"),
        ([{"width": True, "params": 5, "macs": 7}], "width cannot be True"),
        ([{"width": 0.5, "params": 5.5, "macs": 7}], "params must be a whole number"),
        ([{"width": 0.5, "params": 5, "macs": 7, "knn": float("nan")}], "knn must be a number, got nan"),
        ([{"width": 0.5, "params": 5, "macs": 7, "top9": 1}], "unknown top9"),
    ],
)
def test_a_malformed_file_is_said_in_one_line(broken, message):
    with pytest.raises(UserError, match=message) as error:
        from_plain(broken)
    assert "\n" not in str(error.value)


def test_top5_where_there_is_room():
    assert "top-5" in text([WidthResult(0.5, 1000, 2000, knn=50.0, knn_top5=80.0)])
    assert "top-5" not in text([WidthResult(0.5, 1000, 2000, knn=50.0, knn_top5=80.0, knn_untrained=10.0)])
    assert "fine-" in text([WidthResult(0.5, 1000, 2000, finetuned=50.0)])


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


def test_intervals_stand_beside_accuracies():
    scores = {1.0: {"knn": Score(60.0, None, 58, 62.2, ())}}
    (column,) = [one for one in results_table([FULL], scores=scores).columns if one.header == "kNN\n%"]
    assert list(column.cells) == ["60.0 ±2.1"]


def test_uncertainty():
    scores = {1.0: {"knn": Score(50, None, 48, 52, ()), "linear": Score(50, None, 47, 53, (), 0.7, 3)}}
    assert "± is the 95 % interval for 1,234 test images" in uncertainty(scores, 1234)
    assert "at most 0.7" in uncertainty(scores, 10)


def test_comparison_of_unequal_widths():
    runs = {"one": [FULL], "two": [SLIM, FULL]}
    assert comparison(runs, "knn") == {1.0: {"one": 60.0, "two": 60.0}, 0.921875: {"one": None, "two": 50.0}}
