"""Bundles on the Hugging Face Hub; models are in tests/test_hub.py."""

import shutil

import numpy as np
import pytest

import us3l
from us3l.run.cards import MARK
from us3l.system.errors import UserError

NAME = "anna/birds"


def test_a_bundle_goes_there_and_runs_from_there(hub, bundle, small):
    images = np.random.default_rng(0).integers(0, 256, (2, 3, 16, 16), np.uint8)
    us3l.publish(bundle, NAME)
    files = hub.files(NAME)
    assert sorted(files) == sorted([*(path.name for path in bundle.iterdir()), "README.md", ".gitattributes"])
    assert MARK in files["README.md"].decode()
    assert "| 0.5 | onnx | net-0.5.onnx |" in files["README.md"].decode()
    for backend in ("onnx", "openvino"):
        local = us3l.Runtime(bundle, backend).embed(images, width=0.5)
        np.testing.assert_array_equal(us3l.Runtime(f"hf:{NAME}", backend).embed(images, width=0.5), local)
    us3l.publish(small, NAME)  # a model in its place
    assert not any(file.endswith((".onnx", ".xml", "manifest.json")) for file in hub.files(NAME))
    assert us3l.load(f"hf:{NAME}").digest == small.digest


def test_a_bundle_whose_files_are_not_those_of_its_manifest_is_refused(hub, bundle, tmp_path):
    changed = shutil.copytree(bundle, tmp_path / "changed")
    (changed / "net-0.5.onnx").write_bytes(b"")
    with pytest.raises(UserError, match="checksum differs"):
        us3l.publish(changed, NAME)
    assert hub.asked == []
    us3l.publish(bundle, NAME)
    hub.files(NAME)["net-0.5.onnx"] = b"of a stranger"
    with pytest.raises(UserError, match="checksum differs"):
        us3l.Runtime(f"hf:{NAME}")
