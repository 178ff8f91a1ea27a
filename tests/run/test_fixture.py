"""A run folder of the code before us3l/run/ reads with the code of today."""

import shutil
from pathlib import Path

import pytest

from us3l.commands.main import main
from us3l.run import Run
from us3l.run.bundles import read_bundle
from us3l.run.checkpoints import load_checkpoint
from us3l.run.detections import find_detection
from us3l.run.evaluations import find_evaluation, read_evaluations
from us3l.run.probes import read_probes
from us3l.run.records import Gauges, StepRecord, read_history, read_records
from us3l.system.errors import Caution
from us3l.training.run_config import config_of

FOLDER = Path(__file__).parents[1] / "fixtures" / "run-1"


@pytest.fixture
def run(tmp_path):
    return Run(shutil.copytree(FOLDER, tmp_path / "run-1"))


def test_training(run):
    assert run.started
    assert run.finished
    assert config_of(run).recipe.network.backbone == run.settings["recipe"]["network"]["backbone"] == "mobilenet_v2"
    records = read_records(run)
    assert [record.step for record in records if isinstance(record, StepRecord)] == [0, 1, 2, 3]
    assert [list(record.gauges) for record in records if isinstance(record, Gauges)] == [
        ["1", "0.75", "0.5", "0.25"]
    ] * 2
    history = read_history(run)
    assert (history.seconds, history.parts, history.images, history.steps, history.device) == (7, 1, 64, 4, "1 x cpu")
    state, problems = load_checkpoint(run.checkpoints)
    assert (state["step"], state["learner"]["weight"].shape, problems) == (4, (2, 3), [])


def test_the_network(run):
    assert run.network.widths == [0.25, 0.5, 0.7, 0.75, 1.0]
    assert run.network is run.network


def test_evaluations_and_probes_with_a_warning_that_their_weights_are_unknown(run):
    with pytest.warns(Caution, match="does not say which weights"):
        record = run.evaluations["digits"]
    assert (record.metric, record.percent("linear")) == ("linear", {1.0: 24.0, 0.5: 24.0})
    assert (record.protocol, record.train_images, record.test_images, record.size) == ("fast", 200, 100, 16)
    assert record.scores[0.5]["knn"].top1 == 29.0
    with pytest.warns(Caution, match="does not say which weights"):
        assert find_evaluation(run, "digits", "fast") == record
    with pytest.warns(Caution, match="does not say which weights"):
        assert list(read_probes(run, "digits").linear) == [1.0, 0.5]
    assert read_evaluations(run, check=False) == {"digits": record}


def test_evaluations_without_quality(run):
    shutil.copy(FOLDER.parent / "evaluation-2.json", run.evaluation_folder / "digits.json")
    record = run.evaluations["digits"]
    assert (record.percent("linear"), record.weights) == ({1.0: 16.0, 0.5: 14.0}, run.weights)
    assert [row.quality for row in record.widths] == [{}, {}]


def test_the_profile(run):
    with pytest.warns(Caution, match="does not say which weights"):
        profile = run.profile
    assert (profile.image_size, len(profile.costs), profile.backends()) == (16, 5, ["torch"])
    shutil.rmtree(run.profile_folder)
    assert run.profile is None


def test_detections_and_the_manifest(run):
    with pytest.warns(Caution, match="does not say which weights"):
        record = run.detections["voc_bccd-1x"]
    assert (record.width, len(record.losses), record.masks, record.layout) == (1.0, 4, None, "voc")
    assert record.boxes.classes["WBC"].ap50 == pytest.approx(6.6006600660066)
    with pytest.warns(Caution, match="does not say which weights"):
        assert find_detection(run, "voc_bccd", 1.0) == record
    bundle = read_bundle(run.export_folder, check=False)  # the network itself is not part of the fixture
    assert [(entry.width, entry.format, entry.weights) for entry in bundle.entries] == [(0.25, "safetensors", None)]


def test_on_the_command_line_the_warning_is_a_line(run, tmp_path, capsys):
    assert main(["compare", str(run.folder), str(shutil.copytree(run.folder, tmp_path / "other"))]) == 0
    told = [line for line in capsys.readouterr().err.splitlines() if "which weights" in line]
    assert len(told) == 2
    assert all(line.startswith("us3l: ") and line.endswith("if in doubt") for line in told)
