"""Whatever a logger is asked for afterwards is what metrics.jsonl says, once."""

import json
import math
import struct
import sys
from collections import defaultdict
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest

from tests.training.test_loop import CONFIG, pretrain
from us3l.run import Run
from us3l.run.training_log import Gauges, Skipped, Start, StepRecord, append_start, cut_records, read_records
from us3l.system.errors import UserError
from us3l.system.stopping import Interrupted
from us3l.training import loggers, loop
from us3l.training.loggers import Recorder, values_of

RECORDS = [
    StepRecord(0, 1, 0.1, [1.0, 0.25], [4.123456789012345, -0.5]),
    Skipped(1, 1, 0.1, [1.0]),
    StepRecord(2, 1, 0.05, [1.0, 0.37], [4.0, -0.25]),
    Gauges(2, 1, {"1": {"spread": 0.9, "knn": 50.0}, "0.25": {"spread": float("nan")}}),
]
PICTURE = np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3)


def wanted(records):
    """By name, the steps and values."""
    series = defaultdict(list)
    for record in records:
        for name, value in values_of(record).items():
            series[name].append((record.step, value))
    return dict(series)


def same(found, records):
    expected = wanted(records)
    assert found.keys() == expected.keys()
    for name, points in expected.items():
        assert [step for step, _ in found[name]] == [step for step, _ in points], name
        np.testing.assert_array_equal([value for _, value in found[name]], [value for _, value in points], name)


class Kept:
    """A logger that keeps what it is told."""

    last = -1
    made: ClassVar[list["Kept"]] = []

    def __init__(self, _):
        self.series, self.pictures, self.closed = defaultdict(list), [], False
        Kept.made.append(self)

    def log(self, step, values):
        for name, value in values.items():
            self.series[name].append((step, value))

    def show(self, name, step, picture):
        self.pictures.append((name, step, picture.shape))

    def close(self):
        self.closed = True


@pytest.fixture
def kept(monkeypatch):
    monkeypatch.setitem(loggers.OPENERS, "tensorboard", Kept)
    monkeypatch.setitem(loggers.PACKAGES, "tensorboard", "json")
    monkeypatch.setattr(Kept, "made", [])
    return Kept.made


@pytest.fixture
def run(tmp_path):
    run = Run(tmp_path / "run")
    run.start(CONFIG)
    append_start(run, Start("2026-11-17 09:00:00", 0, 3, 64, 16, 1, "cpu", "0.1.0", "2"))
    return run


def test_a_logger_mirrors_what_is_written(run, kept):
    with Recorder(run, ("tensorboard",)) as recorder:
        assert not kept  # a run that fails in its first step leaves nothing behind
        recorder.add(RECORDS[:1])
        recorder.add(RECORDS[1:])
    assert len(read_records(run)) == len(RECORDS)
    (logger,) = kept
    same(logger.series, RECORDS)
    assert logger.closed


def test_without_loggers_only_the_file_is_written(run, kept):
    with Recorder(run) as recorder:
        recorder.add(RECORDS)
        recorder.show_neighbours(None, None, None, 3)  # for which nothing is computed
    assert not kept
    assert len(read_records(run)) == len(RECORDS)


def test_a_logger_that_has_steps_is_not_told_of_them_again(run, kept, monkeypatch):
    monkeypatch.setattr(Kept, "last", 0)
    with Recorder(run, ("tensorboard",)) as recorder:
        recorder.add(RECORDS)
    same(kept[0].series, RECORDS[1:])


@pytest.mark.parametrize("when", ["__init__", "log", "close"])
@pytest.mark.usefixtures("kept")
def test_a_logger_that_fails_does_not_end_the_training(run, monkeypatch, when):
    def fail(*_):
        raise OSError(28, "No space left\non device")

    told = []
    monkeypatch.setattr(Kept, when, fail)
    with Recorder(run, ("tensorboard",), lambda text, style: told.append((text, style))) as recorder:
        recorder.add(RECORDS[:2])
        recorder.add(RECORDS[2:])
    assert len(read_records(run)) == len(RECORDS)
    assert told == [(told[0][0], "yellow")]
    assert "No space left on device" in told[0][0]


def test_a_missing_package_is_told_before_anything_is_done(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    config = replace(CONFIG, machine=replace(CONFIG.machine, loggers=("wandb",)))
    with pytest.raises(UserError, match=r"pip install 'us3l\[wandb\]'"):
        pretrain(tmp_path / "run", config)
    assert not (tmp_path / "run").exists()


def test_a_run_that_was_stopped_is_shown_as_one_that_was_not(tmp_path, kept, monkeypatch):
    recipe = replace(CONFIG.recipe, epochs=2)
    config = replace(CONFIG, recipe=recipe, machine=replace(CONFIG.machine, loggers=("tensorboard",)))
    fetch, stops = loop.fetch, [True]

    def stopping(config, trainer, *rest):
        if trainer.step == 8 and stops:
            stops.clear()
            raise Interrupted("stop")
        return fetch(config, trainer, *rest)

    monkeypatch.setattr(loop, "fetch", stopping)
    with pytest.raises(Interrupted):
        pretrain(tmp_path / "run", config)
    pretrain(tmp_path / "run", config, resume=True)
    first, second = kept
    records = read_records(Run(tmp_path / "run"))
    same(second.series, records)
    assert len(second.series["lr"]) == 8 > len(first.series["lr"])
    assert [name for name, _, _ in second.pictures] == ["neighbours 1x", "neighbours 0.25x"]
    assert second.pictures[0][2] == (8 * 8, 7 * 8, 3)


# The real ones, each if it is there


def stopped_and_resumed(run, name):
    """Two steps are written, of which a resumed run writes one again."""
    with Recorder(run, (name,)) as recorder:
        recorder.add(RECORDS[:2])
    cut_records(run, 1)
    append_start(run, Start("2026-11-17 09:30:00", 1, 3, 64, 16, 1, "cpu", "0.1.0", "2"))
    told = []
    with Recorder(run, (name,), lambda text, **_: told.append(text)) as recorder:
        recorder.add(RECORDS[1:])
        for logger in recorder.loggers.values():
            logger.show("neighbours 1x", 2, PICTURE)
    assert not told
    return read_records(run)


def test_tensorboard(run):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    records = stopped_and_resumed(run, "tensorboard")
    events = EventAccumulator(str(run.folder / "tensorboard"), {"tensors": 0, "images": 0}).Reload()
    found = {
        tag: [(event.step, event.tensor_proto.double_val[0]) for event in events.Tensors(tag)]
        for tag in events.Tags()["tensors"]
    }
    same(found, records)
    assert events.Tags()["images"] == ["neighbours 1x"]


def test_weights_and_biases(run, monkeypatch):
    pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    from wandb.proto import wandb_internal_pb2

    records = stopped_and_resumed(run, "wandb")
    (file,) = run.folder.glob("wandb/offline-run-*/*.wandb")
    found = defaultdict(list)
    for data in log_entries(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        items = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
        for key, value in items.items():
            if not key.startswith(("_", "neighbours")):
                value = json.loads(value)
                found[key].append((int(items["_step"]), math.nan if value == "NaN" else value))
    same(found, records)
    assert list(run.folder.glob("wandb/offline-run-*/files/media/images/neighbours*"))


def log_entries(data, block=2**15):
    """What is in a log of LevelDB's format, after a header of seven bytes."""
    position, entry = 7, b""
    while position + 7 <= len(data):
        if (left := block - position % block) < 7:
            position += left
            continue
        length, kind = struct.unpack("<HB", data[position + 4 : position + 7])
        entry += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield entry
            entry = b""


def test_mlflow(run, monkeypatch):
    pytest.importorskip("mlflow", reason="mlflow is not installed")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    from mlflow.tracking import MlflowClient

    records = stopped_and_resumed(run, "mlflow")
    client = MlflowClient((run.folder / "mlruns").resolve().as_uri())
    experiment = client.get_experiment_by_name("us3l")
    (made,) = client.search_runs([experiment.experiment_id])
    found = {
        name: [(metric.step, metric.value) for metric in client.get_metric_history(made.info.run_id, name)]
        for name in made.data.metrics
    }
    same(found, records)
    assert [file.path for file in client.list_artifacts(made.info.run_id)] == ["neighbours 1x.png"]
