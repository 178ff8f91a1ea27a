"""Latencies of other devices, as tables."""

import pytest

from us3l.deploy.device_table import read_device_profile
from us3l.run import Run
from us3l.run.profiles import Costs, Latency, Profile, write_profile
from us3l.system.errors import UserError

COSTS = [Costs(1.0, 400, 4000, 1600, 3000), Costs(0.5, 100, 1000, 400, 1500)]
TIMES = [Latency(1.0, "torch", 1, 5.0, 6.0), Latency(0.5, "torch", 1, 2.0, 3.0), Latency(0.5, "onnx", 8, 9.0, 9.5)]


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_a_profile_of_another_device_is_accepted(small, tmp_path, kind):
    costs = [*COSTS, Costs(0.25, 1, 1, 1, 1)]  # not timed there
    files = write_profile(Run(tmp_path), Profile(16, costs, TIMES), {1.0: 80.0})
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
