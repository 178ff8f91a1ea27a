import csv
import json

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import us3l
from us3l.deploy.profile import (
    Accuracies,
    Costs,
    Latency,
    Profile,
    all_costs,
    candidates,
    latencies,
    pareto,
    read_accuracies,
    read_device_profile,
    read_profile,
    write_profile,
)
from us3l.deploy.timing import TIMED, take_turns
from us3l.errors import UserError

COSTS = [Costs(1.0, 400, 4000, 1600, 3000), Costs(0.5, 100, 1000, 400, 1500)]
TIMES = [Latency(1.0, "torch", 1, 5.0, 6.0), Latency(0.5, "torch", 1, 2.0, 3.0), Latency(0.5, "onnx", 8, 9.0, 9.5)]
FOUND = Accuracies("pets", "linear", {1.0: 80.0})


def test_costs_are_those_of_the_carved_network(small, tmp_path):
    rows = all_costs(small, 16)
    assert [row.width for row in rows] == small.widths[::-1]
    for row in rows:
        network = small.carve(row.width)
        price = us3l.cost(network, (3, 16, 16))
        assert (row.params, row.macs, row.bytes) == (price.params, price.macs, price.bytes)
        save_file({name: tensor.contiguous() for name, tensor in network.state_dict().items()}, tmp_path / "file")
        assert 0 < (tmp_path / "file").stat().st_size - row.bytes < 20_000  # the file's own header


def test_jobs_take_turns_and_the_first_call_of_a_turn_does_not_count():
    calls = []
    jobs = {name: lambda name=name: calls.append(name) for name in "ab"}
    turns = []
    found = take_turns(jobs, 3, turns.append)
    assert calls == [name for _ in range(3) for name in "ab" for _ in range(1 + TIMED)]
    assert {name: len(times) for name, times in found.items()} == {"a": 3 * TIMED, "b": 3 * TIMED}
    assert sum(turns) == 6


def tiny(width):
    return nn.Sequential(nn.Conv2d(3, round(64 * width), 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def test_latencies_of_every_backend():
    pytest.importorskip("openvino")
    pytest.importorskip("onnxruntime")
    net = us3l.Slimmable(tiny)
    counted = []
    widths, backends, batches = [1.0, 0.25], ["torch", "onnx", "openvino"], [1, 32]
    found = latencies(net, 16, widths, backends, batches, threads=1, turns=3, progress=counted.append)
    keys = {(row.width, row.backend, row.batch): row for row in found}
    assert set(keys) == {(w, b, n) for w in widths for b in backends for n in batches}
    assert all(0 < row.p50_ms <= row.p95_ms for row in found)
    for backend in backends:  # 32 images at full width against one at a quarter
        assert keys[1.0, backend, 32].p50_ms > keys[0.25, backend, 1].p50_ms
    assert sum(counted) == 6 + 12 * 3


# Joining


@pytest.fixture
def run(tmp_path):
    def write(name, rows):
        (tmp_path / "eval").mkdir(exist_ok=True)
        common = {"params": 1, "macs": 1}
        (tmp_path / "eval" / f"{name}.json").write_text(
            json.dumps({"data": name, "widths": [common | r for r in rows]})
        )
        return tmp_path

    return write


def test_accuracies_are_joined_by_network_not_by_the_name_of_its_width(small, run):
    named = small.widths[1] + 1e-4
    assert small.canonical(named) == small.widths[1] != named
    folder = run("pets", [{"width": 1.0, "linear": 70.0, "knn": 60.0}, {"width": named, "linear": 65.0}])
    assert read_accuracies(small, folder) == Accuracies("pets", "linear", {1.0: 70.0, small.widths[1]: 65.0})


def test_knn_serves_where_there_is_no_linear_probe(small, run):
    assert read_accuracies(small, run("pets", [{"width": 1.0, "knn": 60.0}])) == Accuracies("pets", "knn", {1.0: 60.0})


def test_several_evaluations_need_a_name(small, run):
    run("pets", [{"width": 1.0, "linear": 70.0}])
    folder = run("dtd", [{"width": 1.0, "linear": 40.0}])
    with pytest.raises(UserError, match="several data sets, dtd, pets: say which counts"):
        read_accuracies(small, folder)
    assert read_accuracies(small, folder, "pets").percent == {1.0: 70.0}
    with pytest.raises(UserError, match=r"has no cars.json: us3l evaluate"):
        read_accuracies(small, folder, "cars")


def test_no_evaluation(small, tmp_path):
    assert read_accuracies(small, tmp_path) is None


def test_candidates():
    profile = Profile(16, COSTS, TIMES)
    wide, narrow = candidates(profile, FOUND, batch=1, percentile="p50")
    assert (wide.width, wide.accuracy, wide.backend, wide.figures["latency_ms"]) == (1.0, 80.0, "torch", 5.0)
    assert (narrow.width, narrow.accuracy, narrow.figures["memory_mb"]) == (0.5, None, 1500 / 1e6)
    wide, narrow = candidates(profile, None, batch=8)
    assert "latency_ms" not in wide.figures
    assert (narrow.backend, narrow.figures["latency_ms"], narrow.figures["memory_mb"]) == ("onnx", 9.5, 8 * 1500 / 1e6)
    assert all("latency_ms" not in row.figures for row in candidates(profile, None, backend="openvino", batch=1))


def test_the_front_has_what_nothing_beats():
    points = [(3, 5), (1, 2), (2, 5), (2, 4), (4, 5), (1, 1), (5, 9)]
    front = {points[index] for index in pareto(points)}
    beaten = {(c, w) for c, w in points for d, v in points if d <= c and v >= w and (d, v) != (c, w)}
    assert front == set(points) - beaten


# Files


def test_a_profile_is_read_back(tmp_path):
    profile = Profile(16, COSTS, TIMES, {"cpu": "a fast one", "threads": 2})
    write_profile(tmp_path, profile, FOUND)
    assert read_profile(tmp_path) == profile
    rows = list(csv.DictReader((tmp_path / "profile.csv").open()))
    assert [(row["width"], row["backend"], row["p95_ms"], row["accuracy"]) for row in rows] == [
        ("1.0", "torch", "6.0", "80.0"),
        ("0.5", "torch", "3.0", ""),
        ("0.5", "onnx", "9.5", ""),
    ]
    assert json.loads((tmp_path / "profile.json").read_text())["accuracy"] == {"data": "pets", "metric": "linear"}


def test_a_damaged_profile(tmp_path):
    (tmp_path / "profile.json").write_text('{"image_size": 16, "costs": [{}]}')
    with pytest.raises(UserError, match=r"cannot read .*profile.json .*--overwrite"):
        read_profile(tmp_path)


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_a_profile_of_another_device_is_accepted(small, tmp_path, kind):
    costs = [*COSTS, Costs(0.25, 1, 1, 1, 1)]  # not timed there
    write_profile(tmp_path, Profile(16, costs, TIMES), FOUND)
    assert read_device_profile(small, tmp_path / f"profile.{kind}") == TIMES


HEADER = "width,backend,batch,p50_ms,p95_ms\n"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "a.csv",
            "width,backend,p50_ms\n1,tflite,3\n",
            "lacks the column batch, p95_ms: it needs width, backend, batch",
        ),
        ("a.csv", HEADER + "1,tflite,1,fast,3\n", "row 1: width, batch, p50_ms and p95_ms must be numbers above 0"),
        ("a.csv", HEADER + "1,tflite,1,nan,3\n", "must be numbers above 0"),
        ("a.csv", HEADER + "1,tflite,1,2,3\n1,tflite,1,4,3\n", "row 2: batch must be at least 1, and p95_ms not below"),
        ("a.csv", HEADER + "0.1,tflite,1,2,3\n", "outside the range"),
        (
            "a.csv",
            HEADER + "1,tflite,1,2,3\n1,tflite,1,2,4\n",
            "two rows for the network of width 1 on tflite, batch 1",
        ),
        ("a.csv", HEADER, "holds no latency"),
        ("a.csv", b"\xff\xfe\x00", "cannot read"),
        ("a.json", "{", "cannot read"),
        ("a.json", '{"rows": []}', "must hold a list of rows"),
        ("a.json", "[1]", "must hold a list of rows"),
        (
            "a.json",
            '[{"width": null, "backend": "x", "batch": 1, "p50_ms": 1, "p95_ms": 1}]',
            "must be numbers above 0",
        ),
    ],
)
def test_tables_of_another_device_that_cannot_be_used(small, tmp_path, name, text, message):
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError, match=message):
        read_device_profile(small, tmp_path / name)


def test_a_missing_table(small, tmp_path):
    with pytest.raises(UserError, match="cannot read"):
        read_device_profile(small, tmp_path / "nowhere.csv")


def test_widths_of_other_devices_mean_the_same_networks(small, tmp_path):
    (tmp_path / "a.csv").write_text(HEADER + f"{small.widths[1] + 1e-4},tflite,1,2,3\n")
    (row,) = read_device_profile(small, tmp_path / "a.csv")
    assert row.width == small.widths[1]


def test_nothing_is_computed_for_costs():
    with torch.device("meta"):
        net = us3l.create("resnet18", stem="cifar", base=8)
    assert len(all_costs(net, 224)) == len(net.widths)
