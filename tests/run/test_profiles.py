"""Profiles: one for each device, read back as they were written."""

import csv
from dataclasses import replace

import pytest
import torch

import us3l
from us3l.run import Run
from us3l.run.profiles import (
    PROFILES,
    Agreement,
    Costs,
    Latency,
    Profile,
    newest_profile,
    read_profile,
    write_profile,
)
from us3l.system.errors import UserError
from us3l.width import FULL, Width

HALF = Width(0.5)
COSTS = [Costs(FULL, 400, 4000, 1600, 3000), Costs(HALF, 100, 1000, 400, 1500)]
TIMES = [Latency(FULL, "torch", 1, 5.0, 6.0), Latency(HALF, "torch", 1, 2.0, 3.0), Latency(HALF, "onnx", 8, 9.0, 9.5)]
AGREEMENT = Agreement("pets", 500, 10, {FULL: 100.0, Width(0.5000000000000001): 60.5})
PROFILE = Profile(16, COSTS, TIMES, {"cpu": "a fast one", "threads": 2}, AGREEMENT, name="phone")


def test_a_profile_is_read_back(tmp_path):
    files = write_profile(Run(tmp_path), PROFILE, {1.0: 80.0})
    assert [file.name for file in files] == ["phone.json", "phone.csv"]
    found = read_profile(Run(tmp_path))
    assert found.us3l
    assert found.date
    assert replace(found, us3l=None, torch=None, date=None) == PROFILE
    rows = list(csv.DictReader(files[1].open()))
    assert [(row["width"], row["backend"], row["p95_ms"], row["accuracy"]) for row in rows] == [
        ("1.0", "torch", "6.0", "80.0"),
        ("0.5", "torch", "3.0", ""),
        ("0.5", "onnx", "9.5", ""),
    ]


def test_a_run_has_room_for_many_devices(tmp_path):
    """A second device's profile replaced the first."""
    run = Run(tmp_path)
    write_profile(run, PROFILE)
    write_profile(run, replace(PROFILE, name="my laptop", image_size=32))
    assert PROFILES.names(run) == ["my-laptop", "phone"]
    assert read_profile(run, "phone").image_size == 16
    assert read_profile(run, "my laptop").image_size == 32
    with pytest.raises(UserError, match="was profiled on my-laptop, phone: say which counts, `device='my-laptop'`"):
        read_profile(run)
    with pytest.raises(UserError, match="no profile of 'fridge', only my-laptop, phone"):
        read_profile(run, "fridge")
    newest = newest_profile(run)
    assert newest is not None


def test_a_profile_of_other_weights_is_refused(tmp_path):
    run = Run(tmp_path)
    net = us3l.create("resnet18", stem="cifar", base=8)
    net.save(run.folder / "model")
    write_profile(run, PROFILE)
    assert read_profile(run).weights == run.weights
    with torch.no_grad():
        next(net.parameters()).add_(1)
    net.save(run.folder / "model", overwrite=True)
    with pytest.raises(UserError, match="belongs to another model"):
        read_profile(run)


@pytest.mark.parametrize(
    "content",
    [
        '{"version": 2, "image_size": 16, "costs": [{}]}',
        '{"version": 2, "image_size": 16, "costs": [], "agreement": {"data": "a", "images": 1, "neighbours": 1,'
        ' "percent": {"a": 1}}}',
        '{"version": 2, "image_size": 16, "costs": [], "latencies": [], "machine": {}, "us3l": 3}',
        '{"version": 2, "image_size": 16, "costs": [], "latencies": [{"backend": 3}], "machine": {}}',
    ],
)
def test_a_damaged_profile(tmp_path, content):
    path = PROFILES.file(Run(tmp_path), "phone")
    path.parent.mkdir()
    path.write_text(content)
    with pytest.raises(UserError, match=r"cannot read .*phone\.json: .*overwrite"):
        read_profile(Run(tmp_path))


def test_no_profile(tmp_path):
    assert newest_profile(Run(tmp_path)) is None
    with pytest.raises(UserError, match=r"has no profile: `us3l\.profile"):
        read_profile(Run(tmp_path))
