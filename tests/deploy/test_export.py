import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

import us3l
from us3l.deploy import export as exporting


@pytest.fixture
def net():
    torch.manual_seed(0)
    net = us3l.create("resnet18", stem="cifar", base=8)
    us3l.calibrate(net, torch.randn(16, 3, 16, 16), widths=[0.37, 1.0])
    net.metadata = {"preprocessing": {"size": 16}}
    return net


def test_a_torch_program_runs_by_itself_at_any_batch_size(net, tmp_path):
    path = tmp_path / "network.pt2"
    exporting.export(net, 0.37, path, "torch", 16)
    program = torch.export.load(path).module()
    for batch in (1, 2, 7):
        images = torch.randn(batch, 3, 16, 16)
        torch.testing.assert_close(program(images), net.at(0.37)(images), rtol=1e-4, atol=1e-5)


def test_safetensors_hold_the_small_network_only_and_say_how_to_build_it(net, tmp_path):
    path = tmp_path / "network.safetensors"
    exporting.export(net, 0.37, path, "safetensors", 16)
    with safe_open(path, "pt") as file:
        description = json.loads(file.metadata()["us3l"])
    plain = us3l.create(description["backbone"], **description["options"]).family(description["width"]).eval()
    plain.load_state_dict(load_file(path))
    images = torch.randn(3, 3, 16, 16)
    torch.testing.assert_close(plain(images), net.at(0.37)(images))
    assert path.stat().st_size < 1.1 * us3l.cost(plain, (3, 16, 16)).bytes + 20_000
    assert description["preprocessing"] == {"size": 16}


def test_a_failed_proof_is_an_error_and_leaves_no_file(net, tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "read_program", lambda path, images: torch.zeros(3, 1))  # noqa: ARG005
    with pytest.raises(us3l.UserError, match="differs from the original"):
        exporting.export(net, 0.37, tmp_path / "network.pt2", "torch", 16)
    assert not list(tmp_path.iterdir())


def test_what_is_not_calibrated_is_not_exported(net, tmp_path):
    with pytest.raises(us3l.UserError, match="not calibrated"):
        exporting.export(net, 0.9, tmp_path / "network.pt2", "torch", 16)
