"""What a service answers, over HTTP."""

import json
import re
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.serving.services import encoded, save_run, serving
from us3l.commands.serve import serve
from us3l.run import Run
from us3l.run.linear_maps import keep_space
from us3l.runtime.runtime import Runtime
from us3l.serving.model import usual_threads
from us3l.system.devices import usable_cores
from us3l.system.errors import UserError

KINDS = [("PNG", "RGB"), ("JPEG", "RGB"), ("JPEG", "L"), ("GIF", "P"), ("BMP", "RGB"), ("WEBP", "RGB"), ("PNG", "RGBA")]


def form(images, name="images", end=b"--x--\r\n"):
    """A body and its content type."""
    head = f'--x\r\nContent-Disposition: form-data; name="{name}"; filename="a.png"\r\n\r\n'.encode()
    return b"".join(head + image + b"\r\n" for image in images) + end, "multipart/form-data; boundary=x"


def features(reply):
    assert reply.status == 200, reply.body
    return np.array(reply.json["embeddings"], np.float32)


@pytest.mark.parametrize("backend", ["torch", "onnx", "openvino"])
def test_answers_equal_the_runtime_to_the_bit_whatever_else_is_asked(run_folder, bundle, backend):
    place = run_folder if backend == "torch" else bundle
    runtime = Runtime(place, backend, threads=usual_threads(place, backend))
    images = [encoded(11 + number, *kind, seed=number) for number, kind in enumerate(KINDS)]
    widths = runtime.widths
    expected = {width: np.concatenate([runtime.embed(image, width) for image in images]) for width in widths}
    with serving(place, backend, workers=2, batch_size=8) as client:

        def ask(number):
            width = widths[number % len(widths)]
            some = [number % len(images), (number * 3 + 1) % len(images)][: 1 + number % 2]
            body, kind = form([images[index] for index in some])
            reply = client.post(f"/embed?width={width}", body, kind)
            np.testing.assert_array_equal(features(reply), expected[width][some])
            assert reply.json["width"] == width
            return reply.json

        with ThreadPoolExecutor(8) as pool:
            replies = list(pool.map(ask, range(80)))
    assert {reply["model"] for reply in replies} == {client.service.model.identity}
    at_once = client.service.model.about()["tasks"]["embed"]["images_at_once"]
    assert (at_once > 1) == (backend != "torch")  # which differs in the last bits


def test_threads_are_as_measured_best(run_folder, bundle):
    assert usual_threads(run_folder, "torch") == usual_threads(run_folder, "auto") == 1
    assert usual_threads(bundle, "openvino") == usual_threads(bundle, "auto") == 1  # it holds both
    assert usual_threads(bundle, "onnx") == usable_cores()


def test_every_way_to_send_images(served):
    images = [encoded(seed=seed) for seed in range(3)]
    runtime = served.service.model.runtime
    expected = np.concatenate([runtime.embed(image, 0.5) for image in images])
    texts = [b64encode(image).decode() for image in images]
    for body, kind in (
        form(images),
        (json.dumps(texts), "application/json"),
        (json.dumps({"images": texts}), "application/json; charset=utf-8"),
    ):
        np.testing.assert_array_equal(features(served.post("/embed?width=0.5", body, kind)), expected)
    for kind in ("image/png", "Image/PNG", "application/octet-stream"):
        np.testing.assert_array_equal(features(served.post("/embed?width=0.5x", images[0], kind)), expected[:1])
    raw = served.post("/embed?width=0.5", *form(images), Accept="application/octet-stream")
    assert raw.headers["us3l-shape"] == f"3x{expected.shape[1]}"
    assert raw.headers["us3l-width"] == "0.5"
    np.testing.assert_array_equal(np.frombuffer(raw.body, "<f4").reshape(3, -1), expected)


def test_classes(served):
    image = encoded(seed=5)
    expected = served.service.model.runtime.predict(image, width=0.5)
    reply = served.post("/predict?width=0.5&top=2", image).json
    (ranked,) = reply["predictions"]
    assert ranked[0]["class"] == expected.labels[0]
    assert len(ranked) == 2
    probabilities = {one["class"]: np.float32(one["probability"]) for one in ranked}
    known = dict(zip(expected.classes, expected.probabilities[0], strict=True))
    assert all(known[name] == value for name, value in probabilities.items())
    assert (
        "there is no width 0.25 for classes: choose from 0.5, 1"
        in served.post("/predict?width=0.25", image).json["error"]
    )


def test_a_model_without_classifiers_says_so(bundle):
    with serving(bundle, "onnx") as client:
        reply = client.post("/predict", encoded())
        assert (reply.status, reply.json) == (404, {"error": "this model has no /predict: it gives features"})
        assert client.get("/widths").json["tasks"].keys() == {"embed"}


def test_without_a_width_the_controller_decides(served):
    reply = served.post("/embed", encoded()).json
    assert reply["width"] == served.get("/widths").json["tasks"]["embed"]["width"]
    assert 0 <= reply["waited_ms"] <= reply["took_ms"]


def test_a_width_by_the_time_that_it_may_take(served):
    model = served.service.model
    assert served.post("/embed?latency_ms=1e7", encoded()).json["width"] == max(model.latencies["features"])
    reply = served.post("/embed?latency_ms=1e-6", encoded())
    assert reply.status == 400
    assert "no width takes at most 1e-06 ms here" in reply.json["error"]


def test_features_of_all_widths_in_one_space(small, tmp_path):
    folder = save_run(small, tmp_path / "run")
    with pytest.raises(UserError, match=r"space='shared'\)` fits it"):
        serve(folder, space="shared", port=0)
    sizes = {width: small.carve(width)(torch.zeros(1, 3, 16, 16)).shape[1] for width in (0.25, 1.0)}
    maps = {width: (torch.randn(5, size), torch.randn(5)) for width, size in sizes.items()}
    keep_space(Run(folder), maps, "digits")
    runtime = Runtime(folder, "torch", threads=1, space="shared")
    with serving(folder, space="shared") as client:
        assert client.get("/widths").json["space"] == "shared"
        assert client.get("/widths").json["tasks"]["embed"]["widths"] == [0.25, 1.0]
        for width in maps:
            found = features(client.post(f"/embed?width={width}", encoded()))
            np.testing.assert_array_equal(found, runtime.embed(encoded(), width))
            assert found.shape == (1, 5)


def test_the_guides_example(run_folder, tmp_path, monkeypatch):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "photos").symlink_to(run_folder)
    monkeypatch.chdir(tmp_path)
    guide = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    names: dict = {}
    exec(example, names)
    assert not names["thread"].is_alive()


def test_what_it_says_of_itself(served):
    about = served.get("/widths").json
    assert about["tasks"]["embed"]["widths"] == served.service.model.runtime.widths
    assert about["tasks"]["predict"]["widths"] == [0.5, 1.0]
    assert about["classes"] == ["cat", "dog", "rat"]
    assert [row["width"] for row in about["tasks"]["predict"]["idle_ms"]] == [0.5, 1.0]
    assert served.get("/health").json == {"status": "ok"}
    assert served.get("/ready").json == {"status": "ready"}
