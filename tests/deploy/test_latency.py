"""Latencies as measured here, and of other devices, as tables."""

import pytest
from torch import nn

import us3l
from us3l.deploy.latency import TIMED, latencies, read_device_profile, take_turns
from us3l.run import Run
from us3l.run.profiles import Costs, Latency, Profile, write_profile
from us3l.system.errors import UserError
from us3l.width import Width

COSTS = [Costs(Width(1), 400, 4000, 1600, 3000), Costs(Width(0.5), 100, 1000, 400, 1500)]
TIMES = [
    Latency(Width(1.0), "torch", 1, 5.0, 6.0),
    Latency(Width(0.5), "torch", 1, 2.0, 3.0),
    Latency(Width(0.5), "onnx", 8, 9.0, 9.5),
]


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_a_profile_of_another_device_is_accepted(small, tmp_path, kind):
    costs = [*COSTS, Costs(Width(0.25), 1, 1, 1, 1)]  # not timed there
    files = write_profile(Run(tmp_path), Profile(16, costs, TIMES), {Width(1): 80.0})
    (table,) = [file for file in files if file.suffix == f".{kind}"]
    assert read_device_profile(small, table) == TIMES


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
    (tmp_path / "a.csv").write_text(HEADER + f"{float(small.widths[1]) + 1e-4},tflite,1,2,3\n")
    (row,) = read_device_profile(small, tmp_path / "a.csv")
    assert row.width == small.widths[1]


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
