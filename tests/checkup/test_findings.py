import json
from dataclasses import replace

import pytest

from tests.checkup.made import CHECKUP
from us3l.checkup import findings
from us3l.checkup.findings import DeviceCheck, Gpu, anonymous, own_names, read_checkup, write_checkup
from us3l.system.errors import UserError


def test_a_file_is_read_as_it_was_written_and_replaced_by_the_next(tmp_path):
    path = tmp_path / "doctor.json"
    gpu = replace(CHECKUP.inventory, gpus=[Gpu("A100", 2**35, (8, 0)), Gpu("other", 1)])
    for checkup in (CHECKUP, replace(CHECKUP, inventory=gpu)):
        write_checkup(path, checkup)
        assert read_checkup(path) == checkup


def test_nothing_says_whose_machine_it_is(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/data/people/annabel")
    monkeypatch.setattr(findings.getpass, "getuser", lambda: "abel")
    monkeypatch.setattr(findings.socket, "gethostname", lambda: "annas-tower.example.org")
    monkeypatch.setattr(findings.platform, "node", lambda: "tower7")
    detail = (
        "OSError: [Errno 2] No such file: '/data/people/annabel/venv/lib/libcuda.so' (C:\\Users\\abel\\x.dll) "
        "on annas-tower, ANNAS-TOWER.example.org and tower7, for abel_"
    )
    inventory = replace(CHECKUP.inventory, system="Linux 6.1-abel x86_64")
    write_checkup(
        tmp_path / "doctor.json",
        replace(CHECKUP, inventory=inventory, checks=[DeviceCheck("training step", False, detail=detail)]),
    )
    text = (tmp_path / "doctor.json").read_text().lower()
    for name in ("annabel", "abel", "annas-tower", "example.org", "tower7", "people", "users"):
        assert name not in text
    assert "libcuda.so" in text  # what went wrong is still to be seen


def test_words_that_only_contain_a_name_stay():
    assert anonymous("a cable, 5.0 images/s, 640 x 480", ["cab", "s7"]) == "a cable, 5.0 images/s, 640 x 480"


def test_names_are_known():
    assert own_names()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"recipe": 1}, "not a checkup"),
        ({"kind": findings.KIND, "version": 9}, "format 9"),
        ({"kind": findings.KIND, "version": 1, "us3l": "0"}, "cannot read"),
    ],
)
def test_other_files(tmp_path, content, message):
    path = tmp_path / "doctor.json"
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=message):
        read_checkup(path)


def test_other_files_are_not_replaced(tmp_path):
    path = tmp_path / "notes.json"
    path.write_text("{}")
    for place in (path, tmp_path):
        with pytest.raises(UserError, match="choose another `out`"):
            write_checkup(place, CHECKUP)
    assert path.read_text() == "{}"
