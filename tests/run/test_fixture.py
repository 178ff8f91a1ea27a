"""A run folder that version 0.1.0 wrote (commit df6fb7c) reads with the code of today."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from us3l.run import Run
from us3l.run.bundles import read_bundle
from us3l.run.checkpoints import load_checkpoint
from us3l.run.detections import find_detection
from us3l.run.evaluations import EVALUATIONS, RETRIEVALS, find_evaluation
from us3l.run.finetuned_networks import FinetunedHeader, finetuned_file, finetuned_network, read_finetuned
from us3l.run.linear_maps import ProbesHeader, load_probes, read_probes
from us3l.run.profiles import read_profile
from us3l.run.records import write_described
from us3l.run.training_log import Gauges, StepRecord, read_history, read_records, read_speeds
from us3l.system.errors import UserError
from us3l.training.run_config import config_of

FOLDER = Path(__file__).parents[1] / "fixtures" / "run-2"


@pytest.fixture
def run(tmp_path):
    return Run(shutil.copytree(FOLDER, tmp_path / "run-2"))


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
    assert (history.parts, history.images, history.steps, history.device) == (1, 64, 4, "1 x cpu")
    assert [speed.images for speed in read_speeds(run)] == [64, 64]
    state, problems = load_checkpoint(run.checkpoints)
    assert (state["step"], state["learner"]["weight"].shape, problems) == (4, (2, 3), [])


def test_evaluations_and_what_they_trained(run):
    assert run.evaluations.keys() == {"digits", "digits-finetune"}
    record = run.evaluations["digits"]
    content = json.loads((FOLDER / "eval" / "digits.json").read_text())
    assert (record.metric, record.percent("linear")) == ("linear", {1.0: 20.0, 0.5: 10 / 3})
    assert (record.protocol, record.train_images, record.test_images, record.size) == ("fast", 60, 60, 16)
    for row, written in zip(record.widths, content["widths"], strict=True):
        assert {name: row.row[name] for name in written} == written  # every name and number is where it was
    assert record.widths[1].scores["knn"].per_class == tuple(content["scores"]["0.5"]["knn"]["per_class"])
    assert [(few.width, few.share, few.linear.seeds) for few in record.few_labels] == [(1.0, 0.5, 2), (0.5, 0.5, 2)]
    assert find_evaluation(run, "digits", "fast") == record
    EVALUATIONS.write(run, record)
    again = json.loads(EVALUATIONS.file(run, "digits").read_text())
    assert all(row | old == row for row, old in zip(again.pop("widths"), content.pop("widths"), strict=True))
    stamp = ("date", "us3l", "torch", "weights")
    assert content | again | {name: content[name] for name in stamp} == content | {
        "split": "test",
        "duplicates": None,
        "start": None,
    }
    assert list(read_probes(run, "digits").linear) == [1.0, 0.5]
    assert finetuned_network(run, run.network, 0.25)(torch.zeros(1, 3, 16, 16)).shape == (1, 10)
    matrix = RETRIEVALS.read(run, "digits")
    assert [(row.query, row.gallery) for row in matrix.rows] == [(1.0, 1.0), (1.0, 0.5), (0.5, 1.0), (0.5, 0.5)]


def test_profiles_and_searches(run):
    phone = read_profile(run, "phone")
    assert (phone.image_size, len(phone.costs), phone.backends()) == (16, 5, ["torch"])
    assert phone.agreement.percent == {1.0: 100.0, 0.5: 60.5}
    assert read_profile(run, "desk").agreement is None
    (search,) = run.searches.values()
    assert (search.name, search.best, search.figure, search.fits) == ("macs-1.3e+06", 0.5, "macs", True)
    assert any(not network.uniform for network in search.networks)


def test_detections_and_the_manifest(run):
    record = run.detections["voc_bccd-1x"]
    assert (record.width, len(record.losses), record.masks, record.layout) == (1.0, 2, None, "voc")
    assert record.boxes.classes["WBC"].ap50 == 10.25
    assert find_detection(run, "/data/voc_bccd", 1.0) is not None
    bundle = read_bundle(run.export_folder, check=False)  # the network itself is not part of the fixture
    assert [(entry.width, entry.format) for entry in bundle.entries] == [(0.25, "safetensors")]
    assert bundle.entries[0].weights == run.weights.weights


@pytest.mark.parametrize(
    ("name", "field", "what"),
    [
        ("eval/digits.json", "version", "evaluations"),
        ("detect/voc_bccd-1x.json", "version", "detections"),
        ("search/macs-1.3e+06.json", "version", "searches"),
        ("export/manifest.json", "format", "bundle"),
        ("model/model.json", "format", "network"),
    ],
)
def test_files_of_later_versions_are_refused(run, name, field, what):
    path = run.folder / name
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: 99}))
    with pytest.raises(UserError, match="has format 99"):
        getattr(run, what)


def test_tensors_of_later_versions_are_refused(run):
    network = finetuned_file(run, "photos", 0.5)
    write_described(network, {"fc.bias": torch.ones(2)}, 99, FinetunedHeader(0.5, ["a", "b"], "photos", None))
    with pytest.raises(UserError, match="has format 99"):
        read_finetuned(run, "photos", 0.5)
    probes = {"0.5/weight": torch.ones(2, 3), "0.5/bias": torch.ones(2)}
    write_described(run.folder / "probes.safetensors", probes, 99, ProbesHeader(["a", "b"], "photos", None))
    with pytest.raises(UserError, match="has format 99"):
        load_probes(run.folder / "probes.safetensors")
