import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import us3l
from us3l.deploy.evaluated import Accuracies
from us3l.deploy.profile import all_costs, candidates, latencies
from us3l.deploy.timing import TIMED, take_turns
from us3l.run.profiles import Costs, Latency, Profile

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


def test_candidates():
    profile = Profile(16, COSTS, TIMES)
    wide, narrow = candidates(profile, FOUND, batch=1, percentile="p50")
    assert (wide.width, wide.accuracy, wide.backend, wide.figures["latency_ms"]) == (1.0, 80.0, "torch", 5.0)
    assert (narrow.width, narrow.accuracy, narrow.figures["memory_mb"]) == (0.5, None, 1500 / 1e6)
    wide, narrow = candidates(profile, None, batch=8)
    assert "latency_ms" not in wide.figures
    assert (narrow.backend, narrow.figures["latency_ms"], narrow.figures["memory_mb"]) == ("onnx", 9.5, 8 * 1500 / 1e6)
    assert all("latency_ms" not in row.figures for row in candidates(profile, None, backend="openvino", batch=1))


def test_nothing_is_computed_for_costs():
    with torch.device("meta"):
        net = us3l.create("resnet18", stem="cifar", base=8)
    assert len(all_costs(net, 224)) == len(net.widths)
