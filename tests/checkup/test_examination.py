import json
from dataclasses import replace

import pytest

import us3l
from us3l.checkup import examination
from us3l.checkup.device_checks import DeviceCheck
from us3l.checkup.examination import Checkup, anonymous, personal_names, write_checkup
from us3l.checkup.inventory import Gpu, Inventory
from us3l.commands.main import main
from us3l.system.errors import UserError

INVENTORY = Inventory(
    system="Linux 6.1 x86_64",
    processor="AMD EPYC",
    cores=8,
    usable_cores=4,
    memory=2**34,
    available_memory=2**33,
    device="cuda",
    gpus=[Gpu("NVIDIA A100", 2**35, (8, 0))],
    versions={"python": "3.11.7"},
    extras={"deploy": [], "detect": ["pycocotools"]},
    decoders={"jpeg": "Pillow"},
)
CHECKUP = Checkup("0.1.0", "2026-11-17", INVENTORY, [DeviceCheck("training step", True, 1e-5, 1e-3)])


def test_a_checkup_of_this_machine(tmp_path):
    checkup = us3l.doctor(tmp_path / "doctor.json", device="cpu")
    assert checkup.passed, checkup.checks
    assert [row["name"] for row in checkup.rows] == ["training step", "evaluation"]
    written = json.loads((tmp_path / "doctor.json").read_text())
    assert [check["passed"] for check in written["checks"]] == [True, True]
    assert written["inventory"]["device"] == "cpu"


def test_what_is_printed_and_the_exit_code(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    failed = DeviceCheck("evaluation", False, 0.2, 1e-3, "it differs by 0.2")
    for checks, code in ((CHECKUP.checks, 0), ([*CHECKUP.checks, failed], 1)):
        monkeypatch.setattr(examination, "examine", lambda *_, checks=checks: replace(CHECKUP, checks=checks))
        assert main(["doctor"]) == code
    printed = capsys.readouterr().out
    for part in ("4 of 8 cores", "16.0 GiB, 8.0 GiB available", "NVIDIA A100, 32.0 GiB", "detect (needs pycocotools)",
                 "ok      training step", "FAILED  evaluation: it differs by 0.2", "us3l-doctor.json"):  # fmt: skip
        assert part in printed
    assert json.loads((tmp_path / "us3l-doctor.json").read_text())["kind"] == examination.KIND


def test_nothing_says_whose_machine_it_is(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/data/people/annabel")
    monkeypatch.setattr(examination.getpass, "getuser", lambda: "abel")
    monkeypatch.setattr(examination.socket, "gethostname", lambda: "annas-tower.example.org")
    monkeypatch.setattr(examination.platform, "node", lambda: "tower7")
    detail = (
        "OSError: [Errno 2] No such file: '/data/people/annabel/venv/lib/libcuda.so' (C:\\Users\\abel\\x.dll) "
        "on annas-tower, ANNAS-TOWER.example.org and tower7, for abel_"
    )
    inventory = replace(INVENTORY, system="Linux 6.1-abel x86_64")
    write_checkup(
        tmp_path / "doctor.json",
        replace(CHECKUP, inventory=inventory, checks=[DeviceCheck("training step", False, detail=detail)]),
    )
    text = (tmp_path / "doctor.json").read_text().lower()
    for name in ("annabel", "abel", "annas-tower", "example.org", "tower7", "people", "users"):
        assert name not in text
    assert "libcuda.so" in text  # what went wrong is still to be seen
    assert personal_names()


def test_words_that_only_contain_a_name_stay():
    assert anonymous("a cable, 5.0 images/s, 640 x 480", ["cab", "s7"]) == "a cable, 5.0 images/s, 640 x 480"


def test_other_files_are_not_replaced_and_it_is_said_before_the_work(tmp_path):
    path = tmp_path / "notes.json"
    path.write_text("{}")
    for place in (path, tmp_path):
        with pytest.raises(UserError, match="choose another `out`"):
            us3l.doctor(place, device="cpu")
    assert path.read_text() == "{}"
