"""Every backbone, small: PyTorch, ONNX Runtime and OpenVINO agree, in float and nearly in INT8."""

import numpy as np
import pytest
import torch

import us3l
from us3l.data.preprocessing import Preprocessing
from us3l.data.sources import load
from us3l.deploy.exporting import Source, export_network
from us3l.deploy.proof import Evidence
from us3l.run.bundles import read_bundle

onnxruntime = pytest.importorskip("onnxruntime", reason="needs us3l[deploy]")
openvino = pytest.importorskip("openvino", reason="needs us3l[deploy]")
SIZE = 16
CIFAR = {"stem": "cifar", "base": 8}
BACKBONES = {
    "resnet18": CIFAR,
    "resnet50": CIFAR,
    "mobilenet_v2": CIFAR,
    "vit_tiny": {"image_size": SIZE, "patch": 8, "base": 16, "depth": 1},
}


@pytest.fixture(scope="module")
def evidence():
    return Evidence.of(load("digits", "train", SIZE, 40), load("digits", "test", SIZE, 20), Preprocessing.usual(SIZE))


def prepared(name, evidence, width):
    torch.manual_seed(0)
    net = us3l.create(name, **BACKBONES[name])
    us3l.calibrate(net, evidence.train, widths=width)
    return Source(net, SIZE)


@pytest.mark.parametrize("name", BACKBONES)
def test_the_runtimes_agree(name, evidence, tmp_path):
    """Where blocks may be left out, there is one in each stage: they are alike, and a graph takes its time."""
    blocks = us3l.create(name, **BACKBONES[name]).family.blocks or ()
    width = us3l.Subnet([0.37, *[0.5] * (len(blocks) - 1)], [1] * len(blocks)) if blocks else 0.37
    source = prepared(name, evidence, width)
    entry, _ = export_network(source, width, "onnx", tmp_path, evidence)
    bundle = read_bundle(tmp_path)
    path = bundle.path(bundle.entries[0])
    assert bundle.entries == [entry]
    session = onnxruntime.InferenceSession(path)
    model = openvino.convert_model(path)  # as our exporter does; its whole way is tested in test_exporting.py
    compiled = openvino.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    for count in (1, 7):
        images = evidence.test[:count]
        expected = source.net.at(width)(images).numpy()
        bound = 1e-4 * max(1.0, np.abs(expected).max())
        np.testing.assert_allclose(session.run(None, {"images": images.numpy()})[0], expected, rtol=0, atol=bound)
        np.testing.assert_allclose(compiled(images.numpy())[0], expected, rtol=0, atol=bound)
    assert entry.features == expected.shape[1]
    weights = sum(tensor.numel() * 4 for tensor in source.net.carve(width).state_dict().values())
    assert path.stat().st_size < weights + max(0.05 * weights, 40_000)
