"""Running a plain network with PyTorch, ONNX Runtime or OpenVINO: one function each, safe to call from any thread."""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import nn

from us3l.deploy.deployment_settings import Backend as Backend
from us3l.system.devices import processor_name
from us3l.system.errors import UserError
from us3l.system.optional import need

BACKENDS: tuple[Backend, ...] = get_args(Backend)
PACKAGES: dict[Backend, str] = {"torch": "torch", "onnx": "onnxruntime", "openvino": "openvino"}
Forward = Callable[[np.ndarray], np.ndarray]
"""From preprocessed images (N x 3 x H x W, float32) to outputs (N x C)."""


def library(backend: Backend) -> Any:
    """The backend's package, or an error that says how to get it."""
    return need(PACKAGES[backend])


def run_torch(network: nn.Module) -> Forward:
    device = next(network.parameters()).device

    def run(images: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return network(torch.from_numpy(images).to(device)).cpu().numpy()

    return run


def run_onnx(model: Path | bytes, threads: int, spinning: bool = False) -> Forward:
    """Run a network with ONNX Runtime.

    Args:
        model: An ONNX file, or what it holds.
        threads: That compute one call.
        spinning: They spin for a millisecond when they have nothing to do, which is quicker if there is no other call
            at that time: to wake a thread takes longer than to let it spin until the next call.
    """
    runtime = library("onnx")
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    if spinning:
        options.add_session_config_entry("session.intra_op.spin_duration_us", "1000")  # and then sleep
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        if threads == len(cores) > 1:  # as ONNX Runtime does if it chooses their number: else two may share a processor
            places = ";".join(str(processor + 1) for processor in cores[1:])
            options.add_session_config_entry("session.intra_op_thread_affinities", places)
    else:  # workers that spin while they wait would steal time from the other widths' sessions
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    (source,) = session.get_inputs()
    return lambda images: session.run(None, {source.name: images})[0]


def run_openvino(model: Path | bytes, threads: int) -> Forward:
    """Run a network with OpenVINO; see `run_onnx`. Files may be its own, too."""
    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",  # else processors with bfloat16 would round to it
    }
    core = library("openvino").Core()
    compiled = core.compile_model(core.read_model(model) if isinstance(model, bytes) else model, "CPU", settings)
    of_thread = threading.local()  # a request object holds buffers: each thread needs one

    def run(images: np.ndarray) -> np.ndarray:
        if not hasattr(of_thread, "request"):
            of_thread.request = compiled.create_infer_request()
        return of_thread.request.infer([images])[0]

    return run


def check_finite(outputs: np.ndarray) -> np.ndarray:
    """Return outputs of a network; raise a `UserError` if some are not finite, as those of damaged weights are."""
    if not np.isfinite(outputs).all():
        raise UserError(
            "the network's outputs are not finite numbers: its weights or statistics are damaged, or its training "
            "failed; train it again, or calibrate it again"
        )
    return outputs


OPENERS: dict[str, Callable[[Path | bytes, int], Forward]] = {"onnx": run_onnx, "openvino": run_openvino}


def set_threads(threads: int | None) -> int:
    """Let PyTorch, in this whole process, compute one request on this many threads (default: its present number)."""
    if threads is not None and threads < 1:
        raise UserError(f"threads={threads} must be at least 1")
    if threads is not None:
        torch.set_num_threads(threads)
    return torch.get_num_threads()


def machine(backends: tuple[Backend, ...], threads: int) -> dict[str, Any]:
    """What a latency depends on besides the network."""
    return {
        "cpu": processor_name(),
        "system": platform.platform(),
        "threads": threads,
        "versions": {"python": platform.python_version(), **{name: version(PACKAGES[name]) for name in backends}},
    }
