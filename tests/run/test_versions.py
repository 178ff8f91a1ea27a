"""Files of later versions of us3l are refused, whichever kind they are."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from us3l.run import Run
from us3l.run.described import write_described
from us3l.run.finetuned import finetuned_file, read_finetuned
from us3l.run.probes import load_probes
from us3l.system.errors import UserError

FOLDER = Path(__file__).parents[1] / "fixtures" / "run-1"


@pytest.fixture
def run(tmp_path):
    return Run(shutil.copytree(FOLDER, tmp_path / "run-1"))


@pytest.mark.parametrize(
    ("name", "field", "what"),
    [
        ("eval/digits.json", "version", "evaluations"),
        ("detect/voc_bccd-1x.json", "version", "detections"),
        ("profile/profile.json", "version", "profile"),
        ("export/manifest.json", "format", "bundle"),
        ("model/model.json", "format", "network"),
    ],
)
def test_descriptions(run, name, field, what):
    path = run.folder / name
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: 99}))
    with pytest.raises(UserError, match="has format 99"):
        getattr(run, what)


def test_tensors(run):
    described = {"version": 99, "width": 0.5, "classes": ["a", "b"], "data": "photos", "weights": None}
    network = finetuned_file(run, "photos", 0.5)
    write_described(network, {"fc.bias": torch.ones(2)}, described)
    with pytest.raises(UserError, match="has format 99"):
        read_finetuned(run, "photos", 0.5)
    probes = {"0.5/weight": torch.ones(2, 3), "0.5/bias": torch.ones(2)}
    write_described(run.folder / "probes.safetensors", probes, described)
    with pytest.raises(UserError, match="has format 99"):
        load_probes(run.folder / "probes.safetensors")
