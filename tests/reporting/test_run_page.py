import json
from dataclasses import replace

import pytest

from tests.made_runs import make_run
from us3l.commands.screen import as_typed
from us3l.deploy.profiling import all_costs
from us3l.objective.methods import METHODS
from us3l.reporting.curves import thinned
from us3l.reporting.run_page import (
    compared,
    evaluation_facts,
    evaluations,
    method_of,
    run_facts,
    trade_offs,
    width_figures,
)
from us3l.system.files import as_plain
from us3l.training.recipes import CIFAR, VIT
from us3l.training.run_config import config_of


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "digits", classes=["zero", "one"])


@pytest.fixture(scope="module")
def facts(run):
    return run_facts(run, "digits", run.network, 16)


def test_the_facts_are_plain(facts):
    assert json.loads(json.dumps(facts, allow_nan=False, default=as_plain)) == facts


def test_what_it_is(facts):
    summary = dict(facts["summary"])
    assert summary["Data"] == "digits, 40 images"
    assert summary["Method"].startswith("us3l: ")
    assert summary["Trained"] == "2026-01-01 10:00 to 2026-01-03 10:00"
    assert summary["Cost"] == "1 min 30 s on 1 x cpu, in 2 parts"  # the two days between are nobody's work
    assert summary["State"] == "finished"
    assert facts["lead"].endswith("without labels, and runs at 8 widths, from 0.25x to 1x.")
    assert [one["label"] for one in facts["headlines"]][:2] == ["Accuracy at 1x", "Accuracy at 0.25x"]
    assert [one["value"] for one in facts["headlines"]][:2] == ["90.0 %", "60.0 %"]
    assert facts["headlines"][0]["note"].endswith("95 % interval 88.0 to 92.0 %")
    provenance = dict(facts["provenance"])
    assert provenance["Seed"] == "0"
    assert len(provenance["Weights, SHA-256"]) == 64
    assert provenance["Latencies: cpu"] == "abacus"


def test_nothing_is_guessed_between_widths(facts):
    figures = {figure["label"]: figure["values"] for figure in facts["figures"]}
    measured = dict(zip(facts["widths"], figures["Linear probe, digits"], strict=True))
    assert [value for value in measured.values() if value is not None] == [60.0, 80.0, 90.0]
    assert measured[1.0] == 90.0
    assert measured[0.25] == 60.0
    timed = dict(zip(facts["widths"], figures["Latency, ONNX Runtime"], strict=True))
    assert [value for value in timed.values() if value is not None] == [0.5, 1.0]  # one image, the median
    for cost in ("Parameters", "MACs per image", "Size of the weights", "Memory of activations"):
        assert figures[cost] == sorted(figures[cost])


def test_the_pareto_front(facts, run):
    label = [figure["label"] for figure in facts["figures"]]
    fronts = {(label[one["accuracy"]], label[one["cost"]]): one["front"] for one in facts["trade_offs"]}
    widths = [facts["widths"][index] for index in fronts["Linear probe, digits", "MACs per image"]]
    assert widths == [0.25, run.network.canonical(0.5), 1.0]
    assert len(fronts["Linear probe, digits", "Latency, ONNX Runtime"]) == 2
    assert all(facts["figures"][one["accuracy"]]["kind"] == "percent" for one in facts["trade_offs"])


def test_evaluations(facts):
    (one,) = facts["evaluations"]
    assert one["about"] == "1,000 images to learn from, 350 to test; 95 % intervals within ±2.0 points"
    assert [column["name"] for column in one["table"]["columns"]] == ["width", "parameters", "MACs", "linear probe"]
    assert [row[-1] for row in one["table"]["rows"]] == [90.0, 80.0, 60.0]
    assert one["classes"]["rows"] == [["zero", 90.0, 80.0, 60.0], ["one", 90.0, 80.0, 60.0]]


def test_curves(facts):
    charts = {chart["title"]: chart for chart in facts["curves"]}
    assert list(charts) == [
        "Loss of the full network",
        "Loss of the sub-networks",
        "Learning rate",
        "kNN accuracy",
        "Collapse",
        "RankMe",
        "LiDAR",
        "Agreement with 1x",
        "Consistency: turn",
    ]
    (full,) = charts["Loss of the full network"]["series"]
    assert len(full["points"]) <= 120
    assert full["points"][0][1] > 4.9 > 4.1 > full["points"][-1][1]
    subs = {one["name"]: one["points"] for one in charts["Loss of the sub-networks"]["series"]}
    assert list(subs) == ["0.9x", "0.55x to 0.7x", "0.3x to 0.41x", "0.25x"]
    assert min(step for points in subs.values() for step, _ in points) >= 75
    assert {loss for _, loss in subs["0.25x"]} == {-0.25}
    assert [one["name"] for one in charts["Collapse"]["series"]] == ["1x", "0.25x"]
    assert [one["name"] for one in charts["Consistency: turn"]["series"]] == ["0.25x"]


def test_when_to_stop(run):
    advice = run_facts(run, "digits", None, 16, typed=as_typed)["advice"]
    assert advice["verdict"] == "changing"
    assert advice["text"].startswith("Train longer: from the third quarter to the last, LiDAR at 0.25x rose by")
    epochs = 2 * config_of(run).recipe.epochs
    assert advice["command"].endswith(f"config.yaml --epochs {epochs} --out {run.folder}-longer")


def test_quality_without_labels(run):
    record = evaluations(run)[0][0]
    rows = [replace(row, scores={}, rankme=30.0, agreement=50.0) for row in record.widths]
    unlabelled = replace(record, name="flat", widths=rows, classes=None)
    found = evaluation_facts(unlabelled)
    assert found["about"] == "without labels"
    assert [column["name"] for column in found["table"]["columns"]][-2:] == ["RankMe", "agreement with 1x"]
    net = run.network
    figures = width_figures(all_costs(net, 16), [], [unlabelled], net.canonical)
    assert [(one["label"], one["kind"]) for one in figures[-2:]] == [
        ("RankMe, flat", "number"),
        ("Agreement with 1x, flat", "percent"),
    ]
    assert trade_offs(figures) == []
    (rank, agreement) = compared({"one": [unlabelled], "other": [unlabelled]})
    assert (rank["title"], rank["y"]["kind"]) == ("RankMe on flat", "number")
    assert agreement["y"] == {"label": "agreement with 1x", "kind": "percent"}


def test_a_long_curve_keeps_its_mean_and_its_ends():
    points = [(step, float(step % 2)) for step in range(12_000)]
    curve = thinned(points)
    assert len(curve) == 120
    assert {value for _, value in curve} == {0.5}
    assert curve[0][0] < 100 < 11_900 < curve[-1][0]


def test_whole_numbers_of_any_size_are_drawn():
    """They are legal JSON, and ended the page in a traceback."""
    points = [(0, 10**30), *((step, 1.0) for step in range(1, 2000))]
    curve = thinned(points)
    assert (curve[0][1] > 1e20, curve[-1][1]) == (True, 1.0)


def test_what_is_missing(tmp_path):
    run = make_run(tmp_path / "new", finished=False)
    facts = run_facts(run, "new", None, 16, "not finished")
    assert (facts["widths"], facts["figures"], facts["evaluations"], facts["headlines"]) == ([], [], [], [])
    assert dict(facts["summary"])["State"] == "not finished: 300 of 300 steps"
    assert len(facts["curves"]) == 9
    run.metrics.unlink()
    run.log.unlink()
    assert run_facts(run, "new", None, 16)["curves"] == []


def test_a_network_trained_alone_goes_by_its_own_width(tmp_path):
    run = make_run(tmp_path / "alone", individual=0.5, profiled=False)
    facts = run_facts(run, "alone", run.network, 16)
    assert facts["widths"] == [0.5]
    assert facts["figures"][0]["values"] == [90.0]
    assert facts["headlines"][0]["label"] == "Accuracy at 0.5x"


def test_methods_are_recognised():
    for recipe in (CIFAR, VIT):
        for name in METHODS:
            assert method_of(recipe.with_method(name)) == name
    changed = replace(CIFAR, objective=replace(CIFAR.objective, samples=7))
    assert method_of(changed) is None


def test_runs_beside_each_other(run, tmp_path):
    other = make_run(tmp_path / "other", individual=0.5, profiled=False)
    path = other.folder / "eval" / "digits.json"
    path.write_text(path.read_text().replace('"train_images": 1000', '"train_images": 7'))
    found = compared({"one": evaluations(run)[0], "other": evaluations(other, 0.5)[0]})
    (chart,) = found
    assert chart["title"] == "Linear probe on digits"
    assert chart["about"] == "Take care: the evaluations differ in train images."
    assert chart["series"][0]["points"] == [[0.25, 60.0], [0.5, 80.0], [1.0, 90.0]]
    assert chart["series"][1]["points"] == [[0.5, 90.0]]
    assert chart["table"]["rows"] == [[1.0, 90.0, None], [0.5, 80.0, 90.0], [0.25, 60.0, None]]
    assert compared({"one": evaluations(run)[0]}) == []
