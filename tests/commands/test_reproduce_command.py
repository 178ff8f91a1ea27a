"""Whole tables of one tiny network each, on digits."""

import csv
from contextlib import ExitStack
from dataclasses import replace

import pytest
import torch

from tests.shapes import write_coco
from us3l.commands.main import main
from us3l.paper import plans
from us3l.paper.cells import cells_of, chosen_rows, jobs_of
from us3l.paper.scales import SCALES
from us3l.system.errors import UserError
from us3l.system.files import locked
from us3l.system.stopping import Interrupted
from us3l.training import configuration


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    scale = replace(SCALES["mini"], widths=(1.0, 0.25), images=130, size=8, epochs=1, calibration=16, labelled=100)
    monkeypatch.setitem(SCALES, "mini", scale)
    return scale


@pytest.fixture
def trained(monkeypatch):
    """The names of the runs that were trained or gone on with."""
    names = []
    train = configuration.train

    def counted(config, run, **how):
        names.append(run.folder.name)
        train(config, run, **how)

    monkeypatch.setattr(configuration, "train", counted)
    return names


def call(out, *arguments, rows=("5",)):
    return main(["reproduce", "main-cifar100", "--rows", *rows, "--out", str(out), *arguments])


def test_a_stopped_reproduction_repeats_nothing_and_gives_the_same_table(tmp_path, trained, monkeypatch, capsys):
    data = ["--data", "cifar100=digits"]
    asked = []
    with monkeypatch.context() as during:
        during.setattr("us3l.evaluation.measure.choose_device", lambda kind: asked.append(kind) or torch.device("cpu"))
        assert call(tmp_path / "whole", *data) == 0
    assert asked == ["auto"] * 2  # a GPU, where there is one
    whole = (tmp_path / "whole/mini/tables/main-cifar100.csv").read_bytes()
    assert len(trained) == len(set(trained)) == 3  # BYOL, which teaches SEED-MSE at two widths
    assert whole.count(b"\n") == 1 + 2

    trained.clear()
    train = configuration.train

    def stopped(config, run, **how):
        if len(trained) == 1:
            raise Interrupted("stopped after step 1 of 2")
        train(config, run, **how)

    monkeypatch.setattr(configuration, "train", stopped)
    assert call(tmp_path / "parts", *data) == 130
    assert "run the same command again to continue" in capsys.readouterr().out
    monkeypatch.setattr(configuration, "train", train)
    assert call(tmp_path / "parts", *data) == 0
    assert len(trained) == len(set(trained)) == 3
    assert (tmp_path / "parts/mini/tables/main-cifar100.csv").read_bytes() == whole

    trained.clear()
    assert call(tmp_path / "parts", *data) == 0
    assert trained == []

    elsewhere = ["--known", str(tmp_path / "whole/mini/tables/figures.json")]  # on a machine that sees no run
    capsys.readouterr()
    assert call(tmp_path / "elsewhere", *data, *elsewhere, "--list") == 0
    out = capsys.readouterr().out
    assert out.count("known") == 3  # the teacher too, as nobody is left to be taught
    assert "as much as 0 epochs" in out
    assert call(tmp_path / "elsewhere", *data, *elsewhere) == 0
    assert trained == []
    assert (tmp_path / "elsewhere/mini/tables/main-cifar100.csv").read_bytes() == whole
    assert call(tmp_path / "elsewhere", *data, *elsewhere, "--seeds", "2") == 0
    assert len(trained) == 3  # of the second seed
    assert all("-seed1-" in name for name in trained)


def test_validation_images_are_held_out_and_tested_on(tmp_path, trained, capsys):
    arguments = ["--data", "cifar100=digits", "--split", "validation"]
    assert call(tmp_path, *arguments, rows=("9",)) == 0
    (name,) = trained
    out = capsys.readouterr().out
    assert "held out as validation images" in out
    assert "cifar100, validation images, linear probe" in out
    assert [file.name for file in (tmp_path / "mini" / name / "eval").glob("*.json")] == ["digits-validation.json"]
    assert '"cifar100 validation"' in (tmp_path / "mini/tables/figures.json").read_text()
    assert call(tmp_path, "--data", "cifar100=digits", rows=("9",)) == 0
    assert len(set(trained)) == 2  # a run that learns from all images


def test_work_that_another_process_is_at_is_left_to_it(tmp_path, tiny, trained, monkeypatch, capsys):
    first, second = jobs_of(chosen_rows(cells_of("main-cifar100", tiny), [3]), tiny, 1)
    with ExitStack() as other:
        other.enter_context(locked(tmp_path / "mini" / "claims" / first.name))
        monkeypatch.setattr(plans, "wait", other.close)  # it lets go while we wait
        assert call(tmp_path, "--data", "cifar100=digits", rows=("3",)) == 0
    assert "waiting for 1 runs that other processes are at" in capsys.readouterr().out
    assert trained == [second.name, first.name]


def test_a_run_that_fails_does_not_stop_the_others(tmp_path, tiny, monkeypatch, capsys):
    train = configuration.train
    teacher = jobs_of(chosen_rows(cells_of("main-cifar100", tiny), [5]), tiny, 1)[0]  # BYOL at 1x

    def failing(config, run, **how):
        if run.folder.name == teacher.name:
            raise UserError("the loss is not finite")
        train(config, run, **how)

    monkeypatch.setattr(configuration, "train", failing)
    assert call(tmp_path, "--data", "cifar100=digits", rows=("3", "5")) == 1
    out = capsys.readouterr().out
    assert f"failed: {teacher.name}: the loss is not finite" in out
    assert out.count("its teacher failed") == 2
    assert "BYOL" in (tmp_path / "mini/tables/main-cifar100.md").read_text()


def test_it_says_what_is_missing(tmp_path, capsys):
    assert call(tmp_path) == 2
    assert "cifar100 was not found, so its cells stay empty: give --data cifar100=PATH" in capsys.readouterr().out
    assert call(tmp_path, "--data", "cifar100=nowhere") == 2
    assert "--data cifar100=nowhere: there is no such file or folder" in capsys.readouterr().err
    assert call(tmp_path, "--data", "cifar100") == 2
    assert "expected NAME=PATH" in capsys.readouterr().err
    assert call(tmp_path, "--data", "cifar100=digits", "--table-only") == 2
    assert "nothing of main-cifar100 is there yet" in capsys.readouterr().err
    assert main(["reproduce", "main-cifar", "--out", str(tmp_path)]) == 2


def test_the_plan_can_be_looked_at_first(tmp_path, capsys):
    assert call(tmp_path, "--data", "cifar100=digits", "--list", "--seeds", "2") == 0
    out = capsys.readouterr().out
    assert "6 runs; left to train" in out
    assert out.count("to train") == 6 + 1
    assert call(tmp_path, "--list") == 0  # also without the data
    assert "3 runs; left to train" in capsys.readouterr().out
    assert not (tmp_path / "mini").exists()


def test_tables_of_transfer(tmp_path, tiny, monkeypatch):
    """Pre-trained on what stands in for ImageNet, then probed or trained as a detector on other data."""
    detector = {"steps": 2, "batch": 2, "image_size": 24, "channels": 8, "regions": 16}
    monkeypatch.setitem(SCALES, "mini", replace(tiny, images=64, labelled=60, detector=detector))
    pictures = write_coco(tmp_path / "pictures", train=4, val=2)

    def table(name, row, *data):
        arguments = ["--rows", row, "--out", str(tmp_path / "out"), "--data", "cifar100=digits", *data]
        assert main(["reproduce", name, *arguments]) == 0
        with (tmp_path / "out" / "mini" / "tables" / f"{name}.csv").open() as file:
            return [line for line in csv.DictReader(file) if line["ours"]]

    probed = table("classification-r18", "8", "cifar10=digits")
    assert {line["column"] for line in probed} == {"C-10", "C-100"}
    assert all(float(line["knn"]) > 0 for line in probed)  # of the same evaluation
    scores = {f"{score}^{kind}" for score in ("AP", "AP_50", "AP_75") for kind in ("bb", "mk")}
    assert {line["column"] for line in table("coco", "7", f"coco={pictures}")} == scores
