"""A small network, and a bundle of two of its widths, made without our own exporter."""

import warnings

import pytest
import torch

import us3l
from us3l.data.preprocessing import Preprocessing
from us3l.deploy.quiet import silence
from us3l.files import checksum
from us3l.run.bundles import Bundle, Entry, write_bundle

silence()  # tests import the libraries by themselves

PREPROCESSING = {"size": 16, "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}


@pytest.fixture(scope="session")
def small():
    """A calibrated network of six widths that says how it wants its images."""
    torch.manual_seed(0)
    net = us3l.create("resnet18", stem="cifar", base=8)
    us3l.calibrate(net, torch.randn(32, 3, 16, 16))
    net.metadata = {"preprocessing": PREPROCESSING}
    return net


@pytest.fixture(scope="session")
def bundle(small, tmp_path_factory):
    openvino = pytest.importorskip("openvino")
    pytest.importorskip("onnxruntime")
    folder = tmp_path_factory.mktemp("bundle")
    entries = []
    for width in (0.5, 1.0):
        onnx, xml = folder / f"net-{width}.onnx", folder / f"net-{width}.xml"
        network, images = small.carve(width), torch.randn(2, 3, 16, 16)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            axes = {"images": {0: "batch"}}
            torch.onnx.export(network, (images,), onnx, dynamo=False, input_names=["images"], dynamic_axes=axes)
        openvino.save_model(openvino.convert_model(onnx), xml, compress_to_fp16=False)
        price = us3l.cost(network, (3, 16, 16))
        for kind, paths in (("onnx", [onnx]), ("openvino", [xml, xml.with_suffix(".bin")])):
            files = {path.name: checksum(path) for path in paths}
            size = sum(path.stat().st_size for path in paths)
            entries.append(Entry(width, kind, False, files, price.params, price.macs, size, network(images).shape[1]))
    write_bundle(Bundle(folder, "resnet18", Preprocessing.from_plain(PREPROCESSING), entries))
    return folder
