import json
from pathlib import Path

import pytest

from us3l.run import Run
from us3l.run.training_log import (
    Gauges,
    Skipped,
    Start,
    StepRecord,
    append_records,
    append_start,
    cut_records,
    read_history,
    read_records,
    read_starts,
)
from us3l.system.errors import UserError

START = Start("2026-01-01 10:00:00", 0, 4, 64, 32, 2, "cpu", "0.1.0", "2.14.1")
RECORDS = [
    StepRecord(0, 1, 0.1, [1.0, 0.5], [2.0, -1.0]),
    Skipped(1, 1, 0.1, [1.0]),
    Gauges(1, 1, {"0.25": {"spread": 0.5}}),
]


@pytest.fixture
def run(tmp_path):
    run = Run(tmp_path)
    append_start(run, START)
    append_records(run, RECORDS)
    return run


def test_records_come_back(run):
    assert read_records(run) == RECORDS
    assert read_starts(run) == [START]
    assert [json.loads(line)["event"] for line in run.metrics.read_text().splitlines()] == [
        "step",
        "skipped",
        "monitor",
    ]


def test_the_history_is_of_the_starts_and_the_times_of_the_log_whatever_its_words(run):
    append_start(run, Start(**{**vars(START), "time": "2026-01-03 10:00:00", "step": 2}))
    run.log.write_bytes(
        b"2026-01-01 10:00:00 any words\n2026-01-01 10:01:00 \xff broken\nno time\n2026-01-03 10:00:30 end\n"
        b"9999 10:00:00\n"
    )
    history = read_history(run)
    assert (history.seconds, history.parts, history.images, history.steps) == (90.0, 2, 64, 4)
    assert (history.device, str(history.ended)) == ("2 x cpu", "2026-01-03 10:00:30")
    assert read_history(Run(run.folder / "none")) is None


def test_a_clock_that_was_set_back_takes_no_time(run):
    run.log.write_text("2025-01-01 10:00:00 before the start\n")
    assert read_history(run).seconds == 0


@pytest.mark.parametrize(
    "bad",
    [
        "nonsense",
        "3",
        '{"step": 1}',
        '{"event": "step", "step": 1, "epoch": 1, "lr": 0.1, "widths": [1.0, 0.5], "losses": [1.0]}',
        '{"event": "step", "step": 1, "epoch": 1, "lr": 0.1, "widths": [1.0], "losses": [NaN]}',
        '{"event": "step", "step": 1, "epoch": 1, "lr": 1' + "0" * 400 + ', "widths": [1.0], "losses": [1.0]}',
        '{"event": "monitor", "step": 1, "epoch": 1, "gauges": {"wide": {}}}',
        '{"event": "monitor", "step": 1, "epoch": 1, "gauges": {"1": {"spread": 1' + "0" * 400 + "}}}",
        '{"event": "step", "step": ' + "9" * 5000 + "}",
        '{"event": "step", "step": 1' + "0" * 30 + ', "epoch": 1, "lr": 0.1, "widths": [1.0], "losses": [1.0]}',
        "[" * 100_000,
    ],
)
def test_damaged_records_are_named_by_their_line(run, bad):
    run.metrics.write_text(run.metrics.read_text() + bad + "\n")
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 4: not a record"):
        read_records(run)


def test_a_half_written_line_and_events_to_come_do_not_count(run):
    run.metrics.write_bytes(run.metrics.read_bytes() + b'{"event": "dream", "step": 1}\n{"event": "st')
    assert read_records(run) == RECORDS
    run.metrics.write_bytes(run.metrics.read_bytes() + b"\xff\xfe")
    assert read_records(run) == RECORDS


def test_another_version_is_refused(run):
    run.starts.write_text(run.starts.read_text().replace('"version": 2', '"version": 3'))
    with pytest.raises(UserError, match=r"starts\.jsonl, line 1 has format 3"):
        read_records(run)


def test_a_resumed_run_cuts_what_it_will_write_again(run):
    whole = run.metrics.read_text()
    append_records(run, [StepRecord(2, 2, 0.1, [1.0], [1.0])])
    run.metrics.write_text(run.metrics.read_text() + '{"event": "st')
    cut_records(run, 2)
    assert run.metrics.read_text() == whole
    cut_records(run, 0)
    assert run.metrics.read_text() == ""


def test_a_log_line_is_one_line_and_no_link_is_followed(tmp_path):
    from us3l.system.files import append_lines

    append_lines(tmp_path / "log", ["a\nb\r\x1b[31m\u2028c \udcff"])
    assert (tmp_path / "log").read_text() == "a\\nb\\r\\x1b[31m\\u2028c \\udcff\n"
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "train.log").symlink_to(tmp_path / "victim")
    (tmp_path / "metrics.jsonl").symlink_to(tmp_path / "new")
    with pytest.raises(UserError, match=r"train\.log is a link"):
        append_lines(Run(tmp_path).log, ["text"])
    with pytest.raises(UserError, match=r"metrics\.jsonl is a link"):
        append_records(Run(tmp_path), RECORDS)
    assert (tmp_path / "victim").read_text() == "mine"
    assert not Path(tmp_path / "new").exists()


def test_starts_without_a_time_have_no_history(run):
    """Found by fuzzing."""
    run.starts.write_text(run.starts.read_text().replace("2026-01-01 10:00:00", "some day"))
    run.log.write_text("2026-01-01 10:00:00 a line\n")
    assert read_history(run) is None
