import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from us3l.runtime.backends import OPENERS, library, machine, run_torch, set_threads
from us3l.system.errors import UserError


def batches(*sizes):
    random = np.random.default_rng(0)
    return [random.standard_normal((size, 3, 16, 16), np.float32) for size in sizes]


@pytest.mark.parametrize(("backend", "suffix"), [("onnx", "onnx"), ("openvino", "xml")])
@pytest.mark.parametrize("width", [1.0, 0.5])
def test_every_backend_gives_what_pytorch_gives(small, bundle, backend, suffix, width):
    run = OPENERS[backend](bundle / f"net-{width}.{suffix}", 1)
    expected = run_torch(small.carve(width))
    for images in batches(1, 7):
        np.testing.assert_allclose(run(images), expected(images), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("backend", "suffix"), [("onnx", "onnx"), ("openvino", "xml")])
def test_an_answer_is_not_overwritten_by_the_next(bundle, backend, suffix):
    run = OPENERS[backend](bundle / f"net-0.5.{suffix}", 1)
    first, second = batches(2, 2)
    kept = run(first)
    before = kept.copy()
    run(second)
    np.testing.assert_array_equal(kept, before)


@pytest.mark.parametrize(("backend", "suffix"), [("onnx", "onnx"), ("openvino", "xml")])
def test_one_function_serves_many_threads(bundle, backend, suffix):
    run = OPENERS[backend](bundle / f"net-0.5.{suffix}", 1)
    images = batches(*[3] * 40)
    expected = [run(batch) for batch in images]
    with ThreadPoolExecutor(8) as pool:
        for found, wanted in zip(pool.map(run, images), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("backend", ["onnx", "openvino"])
def test_a_missing_library_is_named(backend, monkeypatch):
    for name in ("onnxruntime", "openvino"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match=r"pip install 'us3l\[deploy\]'"):
        library(backend)


def test_what_a_latency_depends_on_is_recorded():
    found = machine(("torch",), 3)
    assert found["threads"] == 3
    assert found["versions"]["torch"] == torch.__version__.split("+")[0]
    assert found["cpu"]


def test_threads_are_set_for_pytorch():
    before = torch.get_num_threads()
    try:
        assert set_threads(2) == torch.get_num_threads() == 2
        assert set_threads(None) == 2
    finally:
        torch.set_num_threads(before)
    with pytest.raises(UserError, match="threads=0"):
        set_threads(0)
