"""`us3l pick` as a user calls it."""

import json
import shutil

import pytest
import torch

import us3l
from tests.evaluations import write_evaluation
from us3l.commands.main import COMMANDS, main
from us3l.deploy.profiling import all_costs
from us3l.run import Run
from us3l.run.profiles import Agreement, Latency, Profile, write_profile

TIMES = [
    Latency(1.0, "torch", 1, 10, 12),
    Latency(0.5, "torch", 1, 6, 7),
    Latency(0.25, "torch", 1, 3, 4),
    Latency(1.0, "onnx", 1, 8, 9),
    Latency(0.5, "onnx", 1, 4, 5),
    Latency(0.5, "onnx", 8, 20, 25),
]


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(COMMANDS, "pick", "")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    torch.manual_seed(0)
    net = us3l.create("resnet18", stem="cifar", base=8)
    net.metadata = {"preprocessing": {"size": 8, "mean": [0.5] * 3, "std": [0.5] * 3}}
    folder = tmp_path_factory.mktemp("run")
    net.save(folder / "model")
    return folder


@pytest.fixture(scope="module")
def evaluated(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluated")
    shutil.copytree(run / "model", folder / "model")
    write_evaluation(folder, {width: {"linear": 60 + 10 * width} for width in (1.0, 0.5, 0.25)}, "pets", data="pets")
    return folder


@pytest.fixture(scope="module")
def profiled(run, evaluated, tmp_path_factory):
    folder = tmp_path_factory.mktemp("profiled")
    for name in ("model", "eval"):
        shutil.copytree(evaluated / name, folder / name)
    write_profile(Run(folder), Profile(8, all_costs(us3l.load(run), 8), TIMES, name="desk"))
    return folder


def picked(capsys, run, arguments, code=0):
    assert main(["pick", str(run), *arguments.split(), "--json"]) == code
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("arguments", "width", "backend"),
    [
        ("--latency-ms 100", 1.0, "onnx"),  # the faster of two
        ("--latency-ms 10", 1.0, "onnx"),
        ("--latency-ms 10 --backend torch", 0.5, "torch"),
        ("--latency-ms 10 --backend torch --percentile p50", 1.0, "torch"),
        ("--latency-ms 4.5", 0.25, "torch"),
        ("--latency-ms 30 --batch 8", 0.5, "onnx"),
        ("--latency-ms 10 --params 50000", 0.5, "onnx"),
        ("--params 50000", 0.5, None),
    ],
)
def test_the_best_within_the_budget(profiled, capsys, arguments, width, backend):
    found = picked(capsys, profiled, arguments)
    assert (found["fits"], found["width"], found["backend"]) == (True, width, backend)
    assert found["ranked_by"] == "linear probe accuracy on pets"
    assert all(margin >= 0 for margin in found["margins"].values())


def test_the_margin_and_what_to_do_next(profiled, capsys):
    assert main(["pick", str(profiled), "--latency-ms", "10", "--accuracy-at-least", "65"]) == 0
    output = capsys.readouterr().out
    assert "1x on desk, onnx, batch 1, p95: the best within the budget" in output
    assert "+10.0%" in output
    assert "+5.0" in output
    assert f"export {profiled} --widths 1 --format onnx" in output.replace("\n", "")


def test_nothing_fits(profiled, capsys):
    assert main(["pick", str(profiled), "--latency-ms", "2"]) == 1
    output = capsys.readouterr().out
    assert "nothing fits; the nearest is 0.25x on desk, torch" in output
    assert "-100.0%" in output
    assert "export" not in output
    found = picked(capsys, profiled, "--latency-ms 8 --accuracy-at-least 69", code=1)
    assert (found["fits"], found["width"], found["margins"]) == (False, 0.5, {"latency_ms": 3.0})


def test_costs_need_no_profile(evaluated, capsys):
    net = us3l.load(evaluated)
    params = us3l.cost(net, 0.5, size=8).params
    for budget, width in ((params, 0.5), (params - 1, 0.25)):
        found = picked(capsys, evaluated, f"--params {budget}")
        assert found["width"] == width
        assert found["figures"]["params"] <= budget


def test_a_wider_network_that_was_not_evaluated_is_told(evaluated, capsys):
    net = us3l.load(evaluated)
    between = [width for width in net.widths if 0.5 < width < 1][-1]
    params = us3l.cost(net, between, size=8).params
    assert main(["pick", str(evaluated), "--params", str(params)]) == 0
    output = capsys.readouterr().out
    assert f"{between:g}x also fits but was not evaluated" in output
    assert f"--widths {between:g}" in output


def test_every_device_has_its_own_profile(profiled, tmp_path, capsys):
    folder = tmp_path / "run"
    shutil.copytree(profiled, folder)
    slow = [Latency(0.25, "tflite", 1, 80, 90), Latency(1.0, "tflite", 1, 300, 310)]
    write_profile(Run(folder), Profile(8, all_costs(us3l.load(folder), 8), slow, name="phone"))
    for device, width in (("desk", 1.0), ("phone", 0.25)):
        found = picked(capsys, folder, f"--latency-ms 100 --device {device}")
        assert (found["width"], found["device"]) == (width, device)
    assert main(["pick", str(folder), "--latency-ms", "100"]) == 2
    assert "was profiled on desk, phone: say which counts" in capsys.readouterr().err
    assert picked(capsys, folder, "--params 1e9")["width"] == 1.0  # which no device has a say in


def test_without_labels_widths_are_ranked_by_agreement(run, tmp_path, capsys):
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    agreement = Agreement("photos", 500, 10, {1.0: 100.0, 0.5: 70.0, 0.25: 75.0})
    write_profile(Run(folder), Profile(8, all_costs(us3l.load(run), 8), TIMES, name="desk", agreement=agreement))
    found = picked(capsys, folder, "--latency-ms 8 --backend torch")
    assert (found["width"], found["accuracy"]) == (0.25, 75.0)
    assert found["ranked_by"] == "agreement with the full network on photos"
    assert main(["pick", str(folder), "--latency-ms", "100"]) == 0
    assert "agreement, %" in capsys.readouterr().out
    assert main(["pick", str(folder), "--latency-ms", "100", "--accuracy-at-least", "50"]) == 2
    assert "no width has an accuracy" in capsys.readouterr().err


def test_without_evaluation_the_widest_wins(run, capsys):
    found = picked(capsys, run, "--macs 1e12")
    assert (found["width"], found["ranked_by"], found["accuracy"]) == (1.0, "width", None)
    assert main(["pick", str(run), "--macs", "1e12"]) == 0
    output = capsys.readouterr().out
    assert "by width" in output
    assert "no width was evaluated or compared with the full network" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "at least one budget"),
        ("--latency-ms 5 --backend openvino", "no latency of openvino: it has torch, onnx"),
        ("--latency-ms 5 --batch 3", "no latency of batch 3: it has 1, 8"),
        ("--macs -1", "must be above 0"),
        ("--macs 1e6 --data dtd", "no evaluation 'dtd'"),
        ("--macs 1e6 --batch-size 0", "batch_size=0 must be at least 1"),
    ],
)
def test_bad_input(profiled, capsys, arguments, message):
    assert main(["pick", str(profiled), *arguments.split()]) == 2
    *cautions, error = capsys.readouterr().err.splitlines()
    assert message in error
    assert all("does not say which weights it belongs to" in caution for caution in cautions)


def test_latencies_must_have_been_measured(evaluated, capsys):
    assert main(["pick", str(evaluated), "--latency-ms", "5"]) == 2
    assert f"us3l profile {evaluated} first" in capsys.readouterr().err
