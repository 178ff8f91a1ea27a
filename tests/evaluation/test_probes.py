import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from us3l.errors import UserError
from us3l.evaluation.linear import Probe
from us3l.evaluation.probes import load_probes, save_probes

PROBES = {1.0: Probe(torch.randn(3, 8).double(), torch.randn(3).double()), 0.25: Probe(torch.eye(3), torch.zeros(3))}


def test_probes_come_back(tmp_path):
    path = tmp_path / "eval" / "x.probes.safetensors"
    save_probes(path, PROBES, ["a", "b", "c"], "photos")
    probes, classes, data = load_probes(path)
    assert (list(probes), classes, data) == ([1.0, 0.25], ["a", "b", "c"], "photos")
    for width, probe in PROBES.items():
        assert probes[width].weight.dtype == torch.float32
        assert torch.equal(probes[width].weight, probe.weight.float())
        assert torch.equal(probes[width].bias, probe.bias.float())
    features = torch.randn(5, 8)
    torch.testing.assert_close(probes[1.0].scores(features), PROBES[1.0].scores(features).float(), rtol=0, atol=1e-5)


def test_the_form_of_the_file(tmp_path):
    save_probes(tmp_path / "x.safetensors", PROBES, None, "photos")
    with safe_open(tmp_path / "x.safetensors", "pt") as file:
        assert set(file.keys()) == {"1/weight", "1/bias", "0.25/weight", "0.25/bias"}
        assert json.loads(file.metadata()["us3l"]) == {"classes": None, "data": "photos"}


def test_files_that_hold_no_probes(tmp_path):
    path = tmp_path / "x.safetensors"
    with pytest.raises(UserError, match="there is no file"):
        load_probes(path)
    save_probes(path, PROBES, None, "photos")
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(UserError, match="cut short, damaged or holds no probes"):
        load_probes(path)
    described = {"us3l": json.dumps({"classes": ["a", "b"], "data": "x"})}
    for tensors, metadata in [
        ({"1/weight": torch.eye(2)}, described),
        ({"1/weight": torch.eye(2), "1/bias": torch.zeros(3)}, described),
        ({"1/weight": torch.eye(3), "1/bias": torch.zeros(3)}, described),
        ({"1/weight": torch.eye(2), "1/bias": torch.zeros(2)}, None),
        ({"one/weight": torch.eye(2), "one/bias": torch.zeros(2)}, described),
    ]:
        save_file(tensors, path, metadata)
        with pytest.raises(UserError, match="cannot read"):
            load_probes(path)
