"""A sub-network with a width and a depth for each stage goes wherever a width goes."""

import json

import numpy as np
import pytest
import torch

import us3l
from tests.made_runs import make_run
from us3l.commands.main import main
from us3l.deploy.classifiers import find_heads
from us3l.run.config import build
from us3l.run.finetuned_networks import list_finetuned, read_finetuned
from us3l.run.training_log import Skipped, StepRecord, append_records, read_records
from us3l.serving.model import ServedModel
from us3l.serving.settings import ServiceSettings
from us3l.width import Width

NAME = "1d2-0.5d1-1d1-0.75d2"
SUBNET = us3l.Width(NAME)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    run = make_run(tmp_path_factory.mktemp("runs") / "subnets", evaluated=False, profiled=False)
    us3l.evaluate(run, widths=(1.0, NAME), floor=False, train_images=60, test_images=60)
    return run


def test_evaluated_profiled_and_picked(run, capsys):
    record = run.evaluations["digits"]
    assert [row.width for row in record.widths] == [1.0, SUBNET]
    assert json.loads((run.evaluation_folder / "digits.json").read_text())["widths"][1]["width"] == NAME
    assert {row.width for row in record.widths if row.scores} == {1.0, SUBNET} == find_heads(run, run.network).keys()
    assert us3l.evaluate(run, widths=SUBNET, floor=False, train_images=60, test_images=60).widths[1].width == SUBNET
    found = us3l.profile(run, widths=[NAME, 0.5], repeats=1, device="here")
    assert {latency.width for latency in run.profile.latencies} == {SUBNET, 0.5}
    (row,) = (row for row in found.rows if row["width"] == NAME)
    assert row["macs"] == us3l.cost(run.network, SUBNET, size=16).macs
    assert row["p50_ms"] > 0
    assert us3l.pick(run, macs=row["macs"]).width == SUBNET
    capsys.readouterr()
    assert main(["pick", str(run.folder), "--macs", str(row["macs"]), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["width"] == NAME


def test_exported_and_run(run, tmp_path, capsys):
    line = ["export", str(run.folder), "--widths", f"{NAME}x", "--format", "safetensors", "--head", "probe"]
    assert main([*line, "--out", str(tmp_path)]) == 0
    assert NAME in capsys.readouterr().out.replace("\n", "")
    assert (tmp_path / f"resnet18-{NAME}x-probe-digits.safetensors").exists()
    net = us3l.load(run.folder)
    us3l.calibrate(net, torch.randn(8, 3, 16, 16), NAME)
    net.save(tmp_path / "model")
    runtime = us3l.Runtime(tmp_path / "model")
    pixels = np.zeros((2, 3, 16, 16), np.uint8)
    again = us3l.load(tmp_path / "model")
    assert again.calibrated(SUBNET)
    np.testing.assert_array_equal(runtime.embed(pixels, width=NAME), runtime.embed(pixels, width=SUBNET))
    assert runtime.embed(pixels, width=NAME).shape[1] == again.at(SUBNET)(torch.zeros(1, 3, 16, 16)).shape[1]
    served = ServedModel(tmp_path / "model", ServiceSettings(width=SUBNET))
    assert served.automatic_width("features") == SUBNET
    pair = [torch.zeros(3, 16, 16, dtype=torch.uint8)] * 2
    expected = runtime.embed(pixels, width=NAME)
    np.testing.assert_allclose(served.compute(pair, "features", SUBNET), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(us3l.UserError, match=r"there is no width 1-1-1-0\.5 for features"):
        served.width(us3l.Width("1-1-1-0.5"), "features")


def test_fine_tuned(run):
    few = {"train_images": 20, "test_images": 20, "epochs": 1, "batch_size": 10}
    us3l.evaluate(run, widths=NAME, protocol="finetune", **few)
    assert list_finetuned(run) == {"digits-finetune": [SUBNET]}
    assert read_finetuned(run, "digits-finetune", SUBNET).width == SUBNET


def test_records_and_settings_know_it(run):
    step, skipped = StepRecord(900, 1, 0.1, [1.0, SUBNET], [1.0, 2.0]), Skipped(901, 1, 0.1, [SUBNET])
    append_records(run, [step, skipped])
    assert read_records(run)[-2:] == [step, skipped]
    assert build(tuple[Width, ...], [0.5, NAME], "here") == (0.5, SUBNET)
    for wrong in ("wide", float("nan")):
        with pytest.raises(us3l.UserError, match=f"here: {wrong!r} is not a width"):
            build(tuple[Width, ...], [wrong], "here")


def test_a_page_is_made(run):
    page = us3l.report(run, images=False)
    assert NAME in page.read_text()
