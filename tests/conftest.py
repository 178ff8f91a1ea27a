from __future__ import annotations

import gc
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import us3l
from us3l.data.preprocessing import Preprocessing
from us3l.data.sources import ImageSet, load
from us3l.objective.heads import projector, save_projector
from us3l.run.bundles import Bundle, Entry, write_bundle
from us3l.system.files import checksum
from us3l.system.optional import silence

silence()  # tests import the libraries of exports by themselves
os.environ["US3L_WORKERS"] = "0"  # tests of worker processes ask for them
torch.set_num_threads(1)  # two workers share two cores; and one thread sums in one order
SHARED = Path(__file__).parents[2] / "shared" / "data"


def pytest_collection_finish() -> None:
    """What is imported by now stays: to look through it for garbage again and again took a tenth of the time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_pages(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page after each training takes seconds; only tests marked `pages` make them."""
    if request.node.get_closest_marker("pages") is None:
        monkeypatch.setattr("us3l.commands.report.after", lambda _: None)


@pytest.fixture
def shared_data() -> Path:
    """Real data sets for tests, which only developers' machines have."""
    if not SHARED.is_dir():
        pytest.skip("the real data sets (../shared/data) are not on this machine")
    return SHARED


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the guides call photos/, in the present one: images of two classes."""
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    for label, level in (("dark", 60), ("light", 190)):
        folder = tmp_path / "photos" / label
        folder.mkdir(parents=True)
        for number in range(40):
            pixels = np.clip(draw.normal(level, 40, (32, 32, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.png")
    return tmp_path / "photos"


@pytest.fixture
def small_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let new runs have small networks and images, unless a guide says otherwise."""
    pretrain = us3l.pretrain

    def quicker(*args: Any, **settings: Any) -> us3l.Run:
        if "resume" in settings:
            return pretrain(*args, **settings)
        small = {"size": 16, "hidden": 16, "predictor": 16, "dim": 16} | ({} if "network" in settings else {"base": 8})
        return pretrain(*args, **small | settings)

    monkeypatch.setattr(us3l, "pretrain", quicker)


@pytest.fixture(scope="session")
def tiny_digits() -> ImageSet:
    return load("digits", limit=64)


@pytest.fixture(scope="session")
def pretrained(tmp_path_factory) -> str:
    """A model of another backbone, with a projector, for SEED."""
    folder = tmp_path_factory.mktemp("teacher")
    torch.manual_seed(0)
    net = us3l.create("mobilenet_v2", stem="cifar", base=8)
    us3l.calibrate(net, torch.randn(32, 3, 8, 8), widths=[1.0])
    net.save(folder / "model")
    save_projector(folder / "projector.safetensors", projector(160, 16, 12), torch.randn(64, 160))
    return str(folder)


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A hub on this machine, with a token that may write.

    huggingface_hub reads HF_ENDPOINT, HF_HOME and HF_HUB_DISABLE_XET only when it is imported.
    """
    from tests.fake_hub import WRITER, point_at, running_hub

    constants = pytest.importorskip("huggingface_hub.constants", reason="needs us3l[hub]")
    with running_hub() as served:
        point_at(monkeypatch, served.url)
        monkeypatch.setattr(constants, "HF_HOME", str(tmp_path / "home"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "home" / "token"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", False)
        monkeypatch.setenv("HF_TOKEN", WRITER)
        yield served


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
