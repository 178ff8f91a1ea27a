import tomllib
from pathlib import Path
from types import SimpleNamespace

import torch

from us3l.checkup import inventory
from us3l.checkup.inventory import EXTRAS, Gpu, take_inventory

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_the_extras_are_those_of_the_project():
    extras = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    modules = {"python-multipart": "python_multipart", "mlflow-skinny": "mlflow", "faiss-cpu": "faiss"}
    needed = {name: [need.partition(">")[0] for need in needs] for name, needs in extras.items() if name in EXTRAS}
    assert {name: tuple(modules.get(need, need) for need in needs) for name, needs in needed.items()} == EXTRAS
    assert {*extras} - {*EXTRAS} == {"dev", "docs"}


def test_what_there_is(monkeypatch):
    monkeypatch.setattr(inventory, "find_spec", lambda name: None if name == "timm" else object())
    found = take_inventory(torch.device("cpu"))
    assert found.device == "cpu"
    assert 1 <= found.usable_cores <= found.cores
    assert found.versions["torch"].startswith(torch.__version__.partition("+")[0])
    assert found.extras["lars"] == ["timm"]
    assert found.extras["deploy"] == []
    assert found.decoders["jpeg"].startswith("Pillow")


def test_gpus(monkeypatch):
    about = SimpleNamespace(name="NVIDIA T4", total_memory=2**34, major=7, minor=5)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: about)
    assert inventory.gpus() == [Gpu("NVIDIA T4", 2**34, (7, 5))]
