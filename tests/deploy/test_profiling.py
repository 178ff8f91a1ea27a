"""What widths cost and how far they agree with the full network."""

import pytest
import torch
from safetensors.torch import save_file

import us3l
from us3l.deploy.accuracies import Accuracies
from us3l.deploy.picking import candidates
from us3l.deploy.profiling import agreement, all_costs
from us3l.evaluation.unlabelled import FEWEST, NEIGHBOURS
from us3l.run.profiles import Costs, Latency, Profile
from us3l.width import Width

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


def test_candidates():
    profile = Profile(16, COSTS, TIMES)
    wide, narrow = candidates(profile, FOUND, batch=1, percentile="p50")
    assert (wide.width, wide.accuracy, wide.backend, wide.figures["latency_ms"]) == (1.0, 80.0, "torch", 5.0)
    assert (narrow.width, narrow.accuracy, narrow.figures["memory_mb"]) == (0.5, None, 1500 / 1e6)
    wide, narrow = candidates(profile, None, batch=8)
    assert "latency_ms" not in wide.figures
    assert (narrow.backend, narrow.figures["latency_ms"], narrow.figures["memory_mb"]) == ("onnx", 9.5, 8 * 1500 / 1e6)
    assert all("latency_ms" not in row.figures for row in candidates(profile, None, backend="openvino", batch=1))


def test_the_accuracy_of_the_float_network_is_not_that_of_its_int8_file():
    times = [*TIMES, Latency(Width(1), "onnx-int8", 1, 2.0, 3.0)]
    rows = candidates(Profile(16, COSTS, times), FOUND, batch=1)
    found = {row.backend: row.accuracy for row in rows if row.width == 1}
    assert found == {"torch": 80.0, "onnx-int8": None}


def test_nothing_is_computed_for_costs():
    with torch.device("meta"):
        net = us3l.create("resnet18", stem="cifar", base=8)
    assert len(all_costs(net, 224)) == len(net.widths)


def test_agreement_is_the_share_of_common_neighbours(small):
    images = torch.randn(60, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    counted = []
    found = agreement(small, [0.25, 0.5, 1.0], images, counted.append)
    assert found[1.0] == 100
    assert sum(counted) == 3
    for width in (0.25, 0.5):
        sets = []
        for network in (small.carve(width), small.carve(1.0)):
            with torch.no_grad():
                features = network(images)
            near = []
            for i, one in enumerate(features):
                others = [(torch.cosine_similarity(one, features[j], dim=0).item(), j) for j in range(60) if j != i]
                near.append({j for _, j in sorted(others, reverse=True)[:NEIGHBOURS]})
            sets.append(near)
        shared = sum(len(a & b) for a, b in zip(*sets, strict=True))
        assert found[width] == pytest.approx(100 * shared / (60 * NEIGHBOURS), abs=0.2)
    assert found[0.25] < 100


def test_it_needs_some_images(small):
    with pytest.raises(us3l.UserError, match=f"at least {FEWEST} images"):
        agreement(small, [1.0], torch.randn(5, 3, 16, 16))
