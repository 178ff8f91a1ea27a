from dataclasses import replace

import pytest

import us3l
from us3l.checkup import examining, speeds
from us3l.checkup.findings import read_checkup
from us3l.system.errors import UserError
from us3l.training.recipes import MINI, Network

TINY = replace(
    MINI,
    network=Network("vit_tiny", base=12, heads=1, depth=1, patch=4),
    objective=replace(MINI.objective, hidden=16, predictor=16, dim=8),
    views=replace(MINI.views, size=8),
)


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(examining, "named", lambda _: TINY)
    monkeypatch.setattr(examining, "BATCH", 4)
    monkeypatch.setattr(speeds, "PHOTO_SIZE", (64, 48))


@pytest.mark.usefixtures("quick")
def test_a_checkup_of_this_machine(tmp_path):
    found = us3l.doctor(tmp_path / "doctor.json", device="cpu", seconds=0.01)
    assert read_checkup(tmp_path / "doctor.json") == found
    assert found.passed, found.checks
    assert [row["name"] for row in found.rows] == ["training step", "evaluation"]
    measured = found.measured
    assert (measured.recipe, measured.size, measured.batch) == ("mini", 8, 4)
    assert measured.steps["32-true"] > 0
    assert measured.loader > 0
    assert measured.streamed > 0
    assert 0 <= measured.waiting <= 1
    assert {each.setting for each in found.recommendations} >= {"precision", "US3L_WORKERS"}


@pytest.mark.usefixtures("quick")
def test_what_cannot_be_measured_is_a_check_that_failed(monkeypatch):
    def broken(*_):
        raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(examining, "time_steps", broken)
    monkeypatch.setattr(examining, "plans", lambda *_: [])
    found = us3l.doctor(device="cpu", seconds=0.01)
    assert not found.passed
    assert [check.name for check in found.checks] == ["speed of a step in 32-true", "reading images"]
    assert "out of memory" in found.checks[0].detail
    assert found.recommendations == []


def test_bad_settings(tmp_path):
    with pytest.raises(UserError, match="seconds=0"):
        us3l.doctor(seconds=0)
    with pytest.raises(UserError, match="unknown recipe"):
        us3l.doctor(recipe="minni", device="cpu")
    (tmp_path / "notes.json").write_text("{}")
    with pytest.raises(UserError, match="choose another `out`"):  # before anything is measured
        us3l.doctor(tmp_path / "notes.json")
