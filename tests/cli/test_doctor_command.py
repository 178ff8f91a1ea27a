from dataclasses import replace

import pytest

from tests.checkup.made import CHECKUP
from us3l.checkup import examining
from us3l.checkup.findings import DeviceCheck, Gpu, read_checkup
from us3l.cli.main import main


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine that was examined already."""
    monkeypatch.chdir(tmp_path)

    def found(checkup):
        monkeypatch.setattr(examining, "examine", lambda *_: checkup)

    return found


def test_what_is_printed_and_written(machine, capsys, tmp_path):
    gpus = [Gpu("NVIDIA A100", 2**35, (8, 0))]
    machine(replace(CHECKUP, inventory=replace(CHECKUP.inventory, device="cuda", gpus=gpus)))
    assert main(["doctor"]) == 0
    told = capsys.readouterr().out
    for part in (
        "4 of 8 cores may be used",
        "16.0 GiB, 8.0 GiB available",
        "NVIDIA A100, 32.0 GiB",
        "detect (needs pycocotools)",
        "ok      training step  differs by 1.0e-05, 0.001 passes",
        "a step in 32-true: 100.0 images/s",
        "5% of the time waiting",
        "--precision 32-true: 100 images/s",
        "us3l-doctor.json",
    ):
        assert part in told
    assert read_checkup(tmp_path / "us3l-doctor.json").passed


def test_a_check_that_fails_is_the_exit_code(machine, capsys):
    failed = DeviceCheck("evaluation", False, 0.2, 1e-3, "it differs by 0.2")
    machine(replace(CHECKUP, checks=[*CHECKUP.checks, failed]))
    assert main(["doctor", "--out", "other.json"]) == 1
    assert "FAILED  evaluation: it differs by 0.2" in capsys.readouterr().out


def test_an_unknown_recipe_is_one_line(capsys):
    assert main(["doctor", "--recipe", "minni"]) == 2
    assert capsys.readouterr().err.startswith("us3l: unknown recipe 'minni'")
