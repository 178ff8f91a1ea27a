import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from us3l.run.probes import Probes, load_probes, write_probes
from us3l.run.weights import Weights
from us3l.system.errors import UserError

LINEAR = {1.0: (torch.randn(3, 8).double(), torch.randn(3).double()), 0.25: (torch.eye(3), torch.zeros(3))}
WEIGHTS = Weights("a" * 64, {"1": "b" * 16})


def test_probes_come_back(tmp_path):
    path = tmp_path / "eval" / "x.probes.safetensors"
    write_probes(path, Probes(LINEAR, ["a", "b", "c"], "photos", WEIGHTS))
    found = load_probes(path)
    assert (list(found.linear), found.classes, found.data, found.weights) == (
        [1.0, 0.25],
        ["a", "b", "c"],
        "photos",
        WEIGHTS,
    )
    for width, (weight, bias) in LINEAR.items():
        assert found.linear[width][0].dtype == torch.float32
        assert torch.equal(found.linear[width][0], weight.float())
        assert torch.equal(found.linear[width][1], bias.float())


def test_the_form_of_the_file(tmp_path):
    write_probes(tmp_path / "x.safetensors", Probes(LINEAR, None, "photos"))
    with safe_open(tmp_path / "x.safetensors", "pt") as file:
        assert set(file.keys()) == {"1/weight", "1/bias", "0.25/weight", "0.25/bias"}
        described = json.loads(file.metadata()["us3l"])
        assert described == {"version": 2, "classes": None, "data": "photos", "weights": None}


def test_files_that_hold_no_probes(tmp_path):
    path = tmp_path / "x.safetensors"
    with pytest.raises(UserError, match="there is no file"):
        load_probes(path)
    write_probes(path, Probes(LINEAR, None, "photos"))
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(UserError, match="it is cut short or damaged"):
        load_probes(path)
    described = {"us3l": json.dumps({"version": 2, "classes": ["a", "b"], "data": "x", "weights": None})}
    newer = {"us3l": json.dumps({"version": 3, "classes": ["a", "b"], "data": "x"})}
    good = {"1/weight": torch.eye(2), "1/bias": torch.zeros(2)}
    for tensors, metadata in [
        ({"1/weight": torch.eye(2)}, described),
        ({"1/weight": torch.eye(2), "1/bias": torch.zeros(3)}, described),
        ({"1/weight": torch.eye(3), "1/bias": torch.zeros(3)}, described),
        (good, None),
        (good, newer),
        ({"one/weight": torch.eye(2), "one/bias": torch.zeros(2)}, described),
    ]:
        save_file(tensors, path, metadata)
        with pytest.raises(UserError, match=r"cannot read|has format 3"):
            load_probes(path)
