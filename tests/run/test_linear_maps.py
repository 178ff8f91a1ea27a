"""Probes come back; the classifier for all widths is trained with labels, tested, exported, and kept with its model."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import us3l
from us3l.data.preprocessing import Preprocessing
from us3l.data.sources import load
from us3l.evaluation.gradient_descent import evaluate_classifier
from us3l.evaluation.prepare import prepare
from us3l.run.identity import Weights
from us3l.run.linear_maps import Probes, load_probes, read_classifier, write_probes
from us3l.system.errors import UserError

TINY: dict[str, Any] = {"recipe": "digits", "base": 8, "size": 8, "images": 200, "epochs": 3, "calibration": 32}
TINY |= {"batch_size": 40}
WIDTHS = (1.0, 0.5)
LINEAR = {1.0: (torch.randn(3, 8).double(), torch.randn(3).double()), 0.25: (torch.eye(3), torch.zeros(3))}
WEIGHTS = Weights("a" * 64, {"1": "b" * 16})


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("elastic") / "run"
    return us3l.pretrain("digits", folder, method="us-net", lr=0.1, calibrated_widths=WIDTHS, **TINY)


@torch.no_grad()
def test_its_accuracy_is_that_of_the_leading_columns(run):
    assert run.finished
    assert not run.projector.exists()
    head, net = read_classifier(run), run.network
    assert (head.classes, head.data) == ([*"0123456789"], "digits")
    record = us3l.evaluate(run, widths=WIDTHS, protocol="classifier", test_images=100)
    assert (record.name, record.protocol) == ("digits-classifier", "classifier")
    test = load("digits", "test", 8, limit=100)
    images = Preprocessing.of(net).apply(test.images)
    for row in record.rows:
        features = net.at(row["width"])(images)
        logits = features @ head.weight[:, : features.shape[1]].T + head.bias
        assert row["finetuned"] == pytest.approx(100 * (logits.argmax(1) == test.labels).float().mean().item())
    assert record.rows[0]["finetuned"] > 25  # ten classes: it has learned something


def test_it_is_exported_at_any_width(run):
    exported = us3l.export(run, (1.0, 0.3), format="safetensors", head="classifier")
    head = read_classifier(run)
    for path, (entry, _) in zip(exported.files, exported.networks, strict=True):
        state = load_file(path)
        weight = state["head.weight"]
        assert torch.equal(weight, head.weight[:, : weight.shape[1]])
        assert torch.equal(state["head.bias"], head.bias)
        assert entry.head is not None
    assert weight.shape[1] < head.weight.shape[1]


def test_bad_classifiers(run):
    images = load("digits", "test", 8, limit=100)
    others = replace(images, classes=[*"abcdefghij"])
    with pytest.raises(UserError, match="has other classes than digits"):
        evaluate_classifier(prepare(run.network, images, others, WIDTHS), read_classifier(run))
    with pytest.raises(UserError, match="epochs has no meaning for the classifier protocol"):
        us3l.evaluate(run, protocol="classifier", epochs=3)
    with pytest.raises(UserError, match="a network has no classifier of its own"):
        us3l.evaluate(run.network, "digits", protocol="classifier")
    kept = run.classifier.read_bytes()
    try:
        run.classifier.write_bytes(kept[:-4] + b"\0\0\0\1")
        with pytest.raises(UserError, match="belongs to another model"):
            read_classifier(run)
        run.classifier.write_bytes(kept[:50])
        with pytest.raises(UserError, match="it is cut short or damaged"):
            read_classifier(run)
        run.classifier.unlink()
        assert not run.finished  # a run that was killed here makes it again
        with pytest.raises(UserError, match="has no classifier of its own: train it with labels"):
            read_classifier(run)
    finally:
        run.classifier.write_bytes(kept)


def test_probes_come_back(tmp_path):
    path = tmp_path / "eval" / "x.probes.safetensors"
    write_probes(path, Probes(LINEAR, ["a", "b", "c"], "photos", WEIGHTS))
    found = load_probes(path)
    assert (list(found.linear), found.classes, found.data, found.weights) == (
        [1.0, 0.25],
        ["a", "b", "c"],
        "photos",
        WEIGHTS,
    )
    for width, (weight, bias) in LINEAR.items():
        assert found.linear[width][0].dtype == torch.float32
        assert torch.equal(found.linear[width][0], weight.float())
        assert torch.equal(found.linear[width][1], bias.float())


def test_the_form_of_the_file(tmp_path):
    write_probes(tmp_path / "x.safetensors", Probes(LINEAR, None, "photos"))
    with safe_open(tmp_path / "x.safetensors", "pt") as file:
        assert set(file.keys()) == {"1/weight", "1/bias", "0.25/weight", "0.25/bias"}
        described = json.loads(file.metadata()["us3l"])
        assert described == {"version": 2, "classes": None, "data": "photos", "weights": None}


def test_files_that_hold_no_probes(tmp_path):
    path = tmp_path / "x.safetensors"
    with pytest.raises(UserError, match="there is no file"):
        load_probes(path)
    write_probes(path, Probes(LINEAR, None, "photos"))
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(UserError, match="it is cut short or damaged"):
        load_probes(path)
    described = {"us3l": json.dumps({"version": 2, "classes": ["a", "b"], "data": "x", "weights": None})}
    newer = {"us3l": json.dumps({"version": 3, "classes": ["a", "b"], "data": "x"})}
    good = {"1/weight": torch.eye(2), "1/bias": torch.zeros(2)}
    for tensors, metadata in [
        ({"1/weight": torch.eye(2)}, described),
        ({"1/weight": torch.eye(2), "1/bias": torch.zeros(3)}, described),
        ({"1/weight": torch.eye(3), "1/bias": torch.zeros(3)}, described),
        (good, None),
        (good, newer),
        ({"one/weight": torch.eye(2), "one/bias": torch.zeros(2)}, described),
    ]:
        save_file(tensors, path, metadata)
        with pytest.raises(UserError, match=r"cannot read|has format 3"):
            load_probes(path)
