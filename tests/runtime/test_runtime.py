import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import us3l
from tests.deploy.test_exporting import Tiny
from us3l.data.preprocessing import Preprocessing
from us3l.data.sources import ImageSet
from us3l.deploy.classifiers import Head, find_heads
from us3l.deploy.exporting import Source, export_network
from us3l.deploy.proof import Evidence
from us3l.evaluation.linear import Probe
from us3l.run import Run
from us3l.run import Run as RunFolder
from us3l.run.linear_maps import Probes, write_probes
from us3l.runtime.backends import Backend
from us3l.runtime.inputs import batches, image_files
from us3l.runtime.runtime import Runtime, spread
from us3l.storage import statistics_shapes
from us3l.system.errors import UserError


def pixels(count=2, side=16, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, 3, side, side), dtype=np.uint8)


def expected(net, images, width):
    with torch.no_grad():
        return net.carve(width)(Preprocessing.usual(16).apply(torch.from_numpy(images))).numpy()


# What goes in and what comes out


@pytest.mark.parametrize(("width", "side"), [(0.25, 16), (0.5, 23), (1.0, 16)])
def test_features_are_those_of_the_carved_network_on_evaluations_view(small, width, side):
    images = pixels(3, side)
    found = Runtime(small).embed(images, width=width)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected(small, images, width), rtol=1e-5, atol=1e-5)


def test_photographs_lose_the_margin_that_evaluation_cuts_off():
    wanted = {"size": 64, "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
    images = pixels(2, 90)
    (batch,) = ImageSet("", torch.from_numpy(images)).batches(Preprocessing.usual(64))
    np.testing.assert_allclose(
        next(batches(images, Preprocessing.from_plain(wanted), 9)).pixels, batch.views[0].numpy(), rtol=1e-5, atol=1e-5
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
        str(tmp_path),  # a folder
        tmp_path,
        [Image.open(file) for file in files],
        list(images),
        list(images.transpose(0, 2, 3, 1)),
        [torch.from_numpy(images[0]), files[1]],
    ):
        np.testing.assert_array_equal(runtime.embed(same), wanted)


def test_one_image_is_a_batch_of_one(small, tmp_path):
    runtime, images = Runtime(small), pixels(1)
    picture = Image.fromarray(images[0].transpose(1, 2, 0))
    picture.save(tmp_path / "one.png")
    for same in (tmp_path / "one.png", str(tmp_path / "one.png"), (tmp_path / "one.png").read_bytes(), picture):
        np.testing.assert_array_equal(runtime.embed(same), runtime.embed(images))


def test_a_folder_without_images(small, tmp_path):
    with pytest.raises(UserError, match="holds no images"):
        Runtime(small).embed(tmp_path)


@pytest.fixture
def photos(tmp_path):
    """A folder of ten images, of which the fourth is damaged."""
    images = pixels(10, 20)
    for number, image in enumerate(images.transpose(0, 2, 3, 1)):
        Image.fromarray(image).save(tmp_path / f"{number}.png")
    (tmp_path / "3.png").write_bytes(b"nothing")


@pytest.mark.usefixtures("photos")
def test_a_bad_file_stops_all_unless_asked_otherwise(small, tmp_path):
    runtime = Runtime(small)
    with pytest.raises(UserError, match=r"cannot read .*3\.png: not an image"):
        runtime.embed(tmp_path)
    with pytest.warns(UserWarning, match=r"1 of 10 images could not be used; the first: cannot read .*3\.png"):
        found = runtime.embed(tmp_path, on_error="nan", batch_size=4)
    assert [file.name for file in image_files(tmp_path)] == [f"{number}.png" for number in range(10)]
    assert np.isnan(found).any(1).tolist() == [number == 3 for number in range(10)]
    good = [number for number in range(10) if number != 3]
    expected = runtime.embed([tmp_path / f"{number}.png" for number in good])
    np.testing.assert_allclose(found[good], expected, rtol=1e-5, atol=1e-6)
    with pytest.warns(UserWarning, match="1 of 1"), pytest.raises(UserError, match="none of the 1 images"):
        runtime.embed(tmp_path / "3.png", on_error="nan")


def test_no_more_images_are_held_than_a_batch(small, tmp_path, monkeypatch):
    """500 files at 224 pixels took 0.7 to 1.75 GB."""
    Image.fromarray(pixels(1)[0].transpose(1, 2, 0)).save(tmp_path / "one.png")
    seen = []
    apply = Preprocessing.apply
    monkeypatch.setattr(Preprocessing, "apply", lambda self, some: seen.append(len(some)) or apply(self, some))
    assert Runtime(small).embed([tmp_path / "one.png"] * 150).shape[0] == 150
    assert Runtime(small).embed(np.repeat(pixels(1), 150, 0)).shape[0] == 150
    assert seen == [64, 64, 22] * 2


def test_the_time_for_many_images_is_that_of_their_batches(small, monkeypatch):
    runtime, asked = Runtime(small), []
    monkeypatch.setattr(runtime, "width_within", lambda *given: asked.append(given) or 0.5)
    runtime.embed(pixels(10), latency_ms=100, batch_size=4)
    runtime.embed(pixels(3), latency_ms=100)
    assert asked == [(40.0, 4, "features"), (100.0, 3, "features")]


def test_without_a_width_the_widest_serves(small):
    np.testing.assert_array_equal(Runtime(small).embed(pixels()), Runtime(small).embed(pixels(), width=1.0))


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (pixels()[0], "N x 3 x H x W or N x H x W x 3, not 3 x 16 x 16"),
        (pixels()[:, :2], "not 2 x 2 x 16 x 16"),
        (pixels(0), "not 0 x 3"),
        ([], "there are no images"),
        (pixels() / 255, "must be uint8, from 0 to 255, not float64"),
        ([pixels()[0, 0]], "image 0 must be 3 x H x W or H x W x 3, not 16 x 16"),
        ([3], "image 0 must be a file, its bytes, an array or a Pillow image, not int"),
        ("nowhere.jpg", "cannot read nowhere.jpg"),
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
    with pytest.raises(UserError, match=r"no width takes at most 1e-06 ms for 2 images here: .* is the fastest"):
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
    with pytest.raises(UserError, match="onnx runs exported files: export some"):
        Runtime(tmp_path / "run", backend="onnx")


@pytest.mark.parametrize("backend", ["auto", "onnx", "openvino"])
def test_a_bundle(small, bundle, backend):
    runtime = Runtime(bundle, backend, threads=1)
    assert runtime.widths == [0.5, 1.0]
    for width in runtime.widths:
        np.testing.assert_allclose(runtime.embed(pixels(5), width=width), expected(small, pixels(5), width), atol=1e-4)
    with pytest.raises(UserError, match=r"has no width 0.37 for features: it has 0.5, 1.0"):
        runtime.embed(pixels(), width=0.37)
    with pytest.raises(UserError, match=r"holds no .* file in INT8: export some in that format with int8"):
        Runtime(bundle, backend, int8=True)


def test_the_bundle_of_a_run_is_found(small, bundle, tmp_path):
    small.save(tmp_path / "model")
    shutil.copytree(bundle, tmp_path / "export")
    assert Runtime(tmp_path).widths == small.widths
    assert Runtime(tmp_path, "onnx").widths == [0.5, 1.0]


def test_a_bundle_has_no_pytorch_networks(bundle):
    with pytest.raises(UserError, match="for PyTorch give the run itself"):
        Runtime(bundle, "torch")


# Features and classes


@pytest.fixture(scope="module")
def classifier(small, tmp_path_factory):
    """A run with classifiers of two widths, and its bundle: encoders and classifiers, some in INT8."""
    pytest.importorskip("nncf")
    folder = tmp_path_factory.mktemp("run")
    small.save(folder / "model")
    generator = torch.Generator().manual_seed(0)
    sizes = {width: small.carve(width)(torch.zeros(1, 3, 16, 16)).shape[1] for width in (0.5, 1.0)}
    probes = {
        width: Probe(torch.randn(3, size, generator=generator), torch.randn(3, generator=generator))
        for width, size in sizes.items()
    }
    linear = {width: (probe.weight, probe.bias) for width, probe in probes.items()}
    path = folder / "eval" / "pets.probes.safetensors"
    write_probes(path, Probes(linear, ["cat", "dog", "rat"], "pets", Run(folder).weights))
    source, evidence = Source(small, 16), replace(Evidence.noise(16), name="noise")
    heads = find_heads(RunFolder(folder), small)
    for width in (0.5, 1.0):
        export_network(source, width, "onnx", folder / "export", evidence, head=heads[width])
    export_network(source, 0.5, "onnx", folder / "export", evidence)
    export_network(source, 0.5, "onnx", folder / "export", evidence, int8=True)
    return folder, probes


@pytest.mark.parametrize(("backend", "int8"), [("torch", None), ("onnx", None), ("onnx", False), ("onnx", True)])
def test_embed_gives_features_whatever_classifiers_lie_beside(small, classifier, backend, int8):
    runtime = Runtime(classifier[0], backend, threads=1, int8=int8)
    found = runtime.embed(pixels(4), width=0.5)
    assert found.shape == (4, 32)
    wanted = expected(small, pixels(4), 0.5)
    assert (found * wanted).sum() / np.linalg.norm(found) / np.linalg.norm(wanted) > (0.9 if int8 else 0.999999)


@pytest.mark.parametrize("backend", ["torch", "onnx"])
def test_predict_gives_classes(small, classifier, backend):
    folder, probes = classifier
    runtime = Runtime(folder, backend, threads=1)
    assert runtime.gives == ("features", "classes")
    assert runtime.classes == ["cat", "dog", "rat"]
    for width in (0.5, 1.0):
        scores = probes[width].scores(torch.from_numpy(expected(small, pixels(4), width)))
        found = runtime.predict(pixels(4), width=width)
        np.testing.assert_allclose(found.probabilities, scores.softmax(1).numpy(), atol=1e-4)
        assert found.indices.tolist() == scores.argmax(1).tolist()
        assert found.labels == [runtime.classes[index] for index in found.indices]
        assert found.rows[0] == {"class": found.labels[0], "probability": float(found.probabilities[0].max())}
    with pytest.raises(UserError, match=r"no (width|classifier).* 0.75"):
        runtime.predict(pixels(4), width=0.75)
    assert runtime.predict(pixels(1), latency_ms=1e6).labels == runtime.predict(pixels(1), width=1.0).labels
    assert runtime.adaptive(1e6).predict(pixels(2)).classes == runtime.classes


@pytest.mark.usefixtures("photos")
def test_an_image_that_cannot_be_read_has_no_class(classifier, tmp_path):
    with pytest.warns(UserWarning, match="1 of 10"):
        found = Runtime(classifier[0]).predict(tmp_path, on_error="nan")
    assert (found.indices[3], found.labels[3], found.rows[3]["probability"]) == (-1, None, None)
    assert None not in [label for number, label in enumerate(found.labels) if number != 3]


def test_networks_without_classifiers_say_so(small, bundle, tmp_path):
    small.save(tmp_path / "model")
    for model, reason in (
        (small, "a network alone has no classifiers"),
        (tmp_path, "has no classifiers: evaluate it"),
        (bundle, "holds no classifier, only encoders"),
    ):
        runtime = Runtime(model)
        assert (runtime.gives, runtime.classes) == (("features",), None)
        with pytest.raises(UserError, match=reason):
            runtime.predict(pixels())
        with pytest.raises(UserError, match="classifier"):
            Runtime(model, head="pets")


def test_a_bundle_of_classifiers_has_no_features(tmp_path):
    net = us3l.Slimmable(Tiny())
    us3l.calibrate(net, torch.randn(8, 3, 16, 16), widths=[0.5])
    for data in ("pets", "cars"):
        head = Head(Probe(torch.randn(3, 16), torch.zeros(3)), ["cat", "dog", "rat"], data)
        export_network(Source(net, 16), 0.5, "onnx", tmp_path, Evidence.noise(16), head=head)
    with pytest.raises(UserError, match=r"holds classifiers probe-cars, probe-pets: choose one, head='probe-cars'"):
        Runtime(tmp_path)
    for name in ("cars", "probe-cars"):
        runtime = Runtime(tmp_path, head=name)
        assert (runtime.gives, runtime.widths) == (("classes",), [0.5])
        assert len(runtime.predict(pixels()).labels) == 2
    with pytest.raises(UserError, match="export without a head"):
        runtime.embed(pixels())


# Forks

FORK = """
import os, signal, sys
import numpy as np, torch, us3l
from us3l.runtime.runtime import Runtime

model, bundle = sys.argv[1:]


def forked(backend, threads):
    runtime = Runtime(model if backend == "torch" else bundle, backend, threads=threads)
    images = np.zeros((8, 3, 64, 64), np.uint8)
    here = runtime.embed(images, width=0.5)
    if os.fork() == 0:
        signal.alarm(20)
        try:
            said = "same" if np.array_equal(runtime.embed(images, width=0.5), here) else "other"
        except us3l.UserError as error:
            said = str(error)
        print(backend, threads, said, sep="\t", flush=True)
        os._exit(0)
    os._exit(os.waitstatus_to_exitcode(os.wait()[1]))


for backend in ("torch", "onnx", "openvino"):  # each in a process that has computed nothing before
    for threads in (1, 2):
        if os.fork() == 0:
            forked(backend, threads)
        print(backend, threads, "child", os.wait()[1], sep="\t", flush=True)
"""


@pytest.fixture(scope="module")
def forks(small, bundle, tmp_path_factory):
    """What each runtime said in a forked process, and how that ended."""
    model = tmp_path_factory.mktemp("forked") / "model"
    small.save(model)
    command = [sys.executable, "-c", FORK, str(model), str(bundle)]
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environment)
    return [line.split("\t") for line in done.stdout.splitlines()]


@pytest.mark.parametrize("backend", ["torch", "onnx", "openvino"])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_forked_runtime_never_hangs(forks, backend, threads):
    (said,), child = (rest for name, count, *rest in forks if (name, count) == (backend, str(threads)))
    assert child == ["child", "0"]
    assert said == "same" if threads == 1 else "make a Runtime in each process after the fork" in said


# Time


def test_latency_chooses_the_widest_that_was_measured_within_it(small, monkeypatch):
    runtime = Runtime(small)
    table = dict(zip(small.widths, (1.0, 2.0, 9.0, 4.0, 8.0, 16.0), strict=False))  # with a noisy width
    monkeypatch.setitem(runtime._latencies, ("features", 2), table)
    for limit, index in ((1.5, 0), (4.0, 3), (100.0, len(table) - 1)):
        chosen = small.widths[index]
        assert runtime.width_within(limit, batch=2) == chosen
        np.testing.assert_array_equal(runtime.embed(pixels(), latency_ms=limit), runtime.embed(pixels(), width=chosen))


def test_measuring_is_done_once_for_each_batch_size(small, monkeypatch):
    runtime = Runtime(small)
    measured = []
    monkeypatch.setattr(
        runtime, "measure", lambda batch, task: measured.append(batch) or Runtime.measure(runtime, batch, task=task)
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
def test_many_requests_of_eight_threads_equal_the_single_threaded_ones(small, bundle, backend: Backend):
    def fresh():
        return Runtime(small if backend == "torch" else bundle, backend, threads=1)

    small._views.clear()  # so that threads meet at the building of modules
    single, shared = fresh(), fresh()
    images = [pixels(1, seed=seed) for seed in range(4)]
    random = np.random.default_rng(0)
    requests = [(random.integers(4), random.choice(single.widths)) for _ in range(240)]
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
    statistics = sum(t.numel() * t.element_size() for kept in net.calibrations for t in kept.statistics.values())
    assert sum(storages.values()) <= 1.1 * weights + statistics
