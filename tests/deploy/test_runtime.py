from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image

import us3l
from us3l.data.batches import evaluation_batches
from us3l.data.preprocessing import Preprocessing
from us3l.data.sources import ImageSet
from us3l.deploy.backends import Backend
from us3l.deploy.images import prepare
from us3l.deploy.runtime import Runtime, spread
from us3l.errors import UserError
from us3l.storage import statistics_shapes


def pixels(count=2, side=16, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, 3, side, side), dtype=np.uint8)


def expected(net, images, width):
    with torch.no_grad():
        return net.carve(width)(Preprocessing.usual(16).apply(torch.from_numpy(images))).numpy()


# What goes in and what comes out


@pytest.mark.parametrize("width", [0.25, 0.5, 1.0])
@pytest.mark.parametrize("side", [16, 23])
def test_features_are_those_of_the_carved_network_on_evaluations_view(small, width, side):
    images = pixels(3, side)
    found = Runtime(small).embed(images, width=width)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected(small, images, width), rtol=1e-5, atol=1e-5)


def test_photographs_lose_the_margin_that_evaluation_cuts_off():
    wanted = {"size": 64, "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
    images = pixels(2, 90)
    (batch,) = evaluation_batches(ImageSet("", torch.from_numpy(images)), Preprocessing.usual(64))
    np.testing.assert_allclose(
        prepare(images, Preprocessing.from_plain(wanted)), batch.views[0].numpy(), rtol=1e-5, atol=1e-5
    )


def test_all_ways_to_give_images_are_the_same(small, tmp_path):
    runtime, images = Runtime(small), pixels()
    wanted = runtime.embed(images)
    files = [tmp_path / f"{number}.png" for number in range(2)]
    for file, image in zip(files, images.transpose(0, 2, 3, 1), strict=True):
        Image.fromarray(image).save(file)
    for same in (
        images.transpose(0, 2, 3, 1),
        torch.from_numpy(images),
        torch.from_numpy(images).permute(0, 2, 3, 1),
        files,
        [str(file) for file in files],
        [file.read_bytes() for file in files],
    ):
        np.testing.assert_array_equal(runtime.embed(same), wanted)


def test_without_a_width_the_widest_serves(small):
    np.testing.assert_array_equal(Runtime(small).embed(pixels()), Runtime(small).embed(pixels(), width=1.0))


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (pixels()[0], "N x 3 x H x W or N x H x W x 3, not 3 x 16 x 16"),
        (pixels()[:, :2], "not 2 x 2 x 16 x 16"),
        (pixels(0), "not 0 x 3"),
        ([], "not 0 x 3"),
        (pixels() / 255, "must be uint8, from 0 to 255, not float64"),
        (["nowhere.jpg"], "cannot read nowhere.jpg"),
        ([b"no image"], "cannot read image 0: not an image"),
    ],
)
def test_images_that_cannot_be_used(small, images, message):
    with pytest.raises(UserError, match=message):
        Runtime(small).embed(images)


def test_requests_that_make_no_sense(small):
    runtime = Runtime(small)
    with pytest.raises(UserError, match="not both"):
        runtime.embed(pixels(), width=0.5, latency_ms=5)
    with pytest.raises(UserError, match="outside the range"):
        runtime.embed(pixels(), width=0.1)
    with pytest.raises(UserError, match=r"no width embeds 2 images within 1e-06 ms here: .* is the fastest"):
        runtime.embed(pixels(), latency_ms=1e-6)


def test_networks_that_cannot_serve():
    net = us3l.create("resnet18", stem="cifar", base=8)
    with pytest.raises(UserError, match="does not say how it wants its images"):
        Runtime(net)
    net.metadata = {"preprocessing": {"size": 16, "mean": [0.5] * 3, "std": [0.5] * 3}}
    with pytest.raises(UserError, match="not calibrated"):
        Runtime(net).embed(pixels())


# Where the network comes from


def test_a_runs_folder_and_a_models(small, tmp_path):
    small.save(tmp_path / "run" / "model")
    wanted = Runtime(small).embed(pixels(), width=0.5)
    for folder in (tmp_path / "run", str(tmp_path / "run" / "model")):
        np.testing.assert_array_equal(Runtime(folder).embed(pixels(), width=0.5), wanted)
    with pytest.raises(UserError, match="onnx runs exported files: us3l export RUN"):
        Runtime(tmp_path / "run", backend="onnx")


@pytest.mark.parametrize("backend", ["auto", "onnx", "openvino"])
def test_a_bundle(small, bundle, backend):
    runtime = Runtime(bundle, backend, threads=1)
    assert runtime.widths == [0.5, 1.0]
    for width in runtime.widths:
        np.testing.assert_allclose(runtime.embed(pixels(5), width=width), expected(small, pixels(5), width), atol=1e-4)
    with pytest.raises(UserError, match=r"has no width 0.37: it has 0.5, 1.0"):
        runtime.embed(pixels(), width=0.37)
    with pytest.raises(UserError, match=r"holds no .* file in INT8: us3l export RUN .* --int8"):
        Runtime(bundle, backend, int8=True)


def test_the_bundle_of_a_run_is_found(small, bundle, tmp_path):
    small.save(tmp_path / "model")
    (tmp_path / "export").symlink_to(bundle)
    assert Runtime(tmp_path).widths == small.widths
    assert Runtime(tmp_path, "onnx").widths == [0.5, 1.0]


def test_a_bundle_has_no_pytorch_networks(bundle):
    with pytest.raises(UserError, match="for PyTorch give the run itself"):
        Runtime(bundle, "torch")


# Time


def test_latency_chooses_the_widest_that_was_measured_within_it(small, monkeypatch):
    runtime = Runtime(small)
    table = dict(zip(small.widths, (1.0, 2.0, 9.0, 4.0, 8.0, 16.0), strict=False))  # with a noisy width
    monkeypatch.setitem(runtime._latencies, 2, table)
    for limit, index in ((1.5, 0), (4.0, 3), (100.0, len(table) - 1)):
        chosen = small.widths[index]
        assert runtime.width_within(limit, batch=2) == chosen
        np.testing.assert_array_equal(runtime.embed(pixels(), latency_ms=limit), runtime.embed(pixels(), width=chosen))


def test_measuring_is_done_once_for_each_batch_size(small, monkeypatch):
    runtime = Runtime(small)
    measured = []
    monkeypatch.setattr(
        runtime, "measure", lambda batch: measured.append(batch) or runtime.__class__.measure(runtime, batch)
    )
    for batch in (1, 2, 1, 2):
        runtime.embed(pixels(batch), latency_ms=1e6)
    assert measured == [1, 2]
    assert set(runtime.latencies(1)) == set(spread(small.widths, 9))
    assert all(ms > 0 for ms in runtime.latencies(1).values())


def test_adaptive_mode_starts_wide_and_serves(small):
    adaptive = Runtime(small).adaptive(target_ms=1e6)
    assert adaptive.width == 1.0
    np.testing.assert_array_equal(adaptive.embed(pixels()), Runtime(small).embed(pixels()))
    assert adaptive.record()["requests"] == 1


# Many threads, one copy of weights


@pytest.mark.parametrize("backend", ["torch", "onnx", "openvino"])
def test_a_thousand_requests_of_eight_threads_equal_the_single_threaded_ones(small, bundle, backend: Backend):
    def fresh():
        return Runtime(small if backend == "torch" else bundle, backend, threads=1)

    small._views.clear()  # so that threads meet at the building of modules
    single, shared = fresh(), fresh()
    images = [pixels(1, seed=seed) for seed in range(10)]
    random = np.random.default_rng(0)
    requests = [(random.integers(10), random.choice(single.widths)) for _ in range(1000)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda request: shared.embed(images[request[0]], width=request[1]), requests))
    known = {
        (index, width): single.embed(image, width=width)
        for index, image in enumerate(images)
        for width in single.widths
    }
    for request, features in zip(requests, found, strict=True):
        np.testing.assert_array_equal(features, known[request])


def test_all_ninety_widths_of_a_resnet18_live_on_one_copy_of_weights():
    net = us3l.create("resnet18")
    net.metadata = {"preprocessing": {"size": 224, "mean": [0.5] * 3, "std": [0.5] * 3}}
    for width in net.widths:
        shapes = statistics_shapes(net, width)
        net.set_statistics(width, {name: torch.ones(shape) for name, shape in shapes.items()})
    runtime = Runtime(net)
    assert len(runtime.widths) == 90
    modules = [runtime.networks.network(width) for width in runtime.widths]  # type: ignore[attr-defined]
    tensors = [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())]
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    weights = sum(p.numel() * p.element_size() for p in net.full.parameters())
    statistics = sum(t.numel() * t.element_size() for _, kept in net.statistics.values() for t in kept.values())
    assert sum(storages.values()) <= 1.1 * weights + statistics
