"""Services of small networks on a port of this machine, and a client for them."""

import contextlib
import http.client
import io
import json
import threading
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from PIL import Image

import us3l.serving.model
from tests.conftest import bundle, small
from us3l.commands.serve import serve
from us3l.run import Run
from us3l.run.linear_maps import Probes, write_probes

WAIT = 60  # seconds after which something hangs
us3l.serving.model.TURNS = 1  # how long these networks take does not matter


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)


class Client:
    """One connection after another to a service."""

    def __init__(self, listening):
        self.listening, self.service = listening, listening.service
        self.port = listening.socket.getsockname()[1]

    def send(self, method, path, body=None, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT)
        with contextlib.closing(connection):
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            headers = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, headers, response.read())

    def get(self, path, **headers):
        return self.send("GET", path, headers=headers)

    def post(self, path, body, kind="image/png", **headers):
        return self.send("POST", path, body, {"Content-Type": kind, **headers})


@contextlib.contextmanager
def serving(model, backend="torch", wait=True, **settings):
    """A client of a service that runs in a thread."""
    usual = {"target_ms": 1e6, "deadline_ms": 1e6}  # a busy machine must not make it refuse
    usual |= {"batch_size": 2, "workers": 1, "port": 0, "backend": backend}
    service = serve(model, **usual | settings)
    ready = threading.Event()
    thread = threading.Thread(target=service.run, args=(ready.set,), daemon=True)
    thread.start()
    try:
        if wait:
            assert ready.wait(WAIT)
        yield Client(service)
    finally:
        service.stop()
        thread.join(10)
        if thread.is_alive():  # something holds a connection open: asked twice, it ends at once
            service.stop()
            thread.join(WAIT)
        assert not thread.is_alive()


def encoded(side=16, kind="PNG", mode="RGB", seed=0):
    """An image file's bytes."""
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, kind)
    return file.getvalue()


@pytest.fixture(scope="session")
def run_folder(small, tmp_path_factory):
    """A model with classifiers for two of its six widths."""
    return save_run(small, tmp_path_factory.mktemp("served") / "run")


def save_run(net, folder):
    net.save(folder / "model")
    torch.manual_seed(1)
    sizes = {width: net.carve(width)(torch.zeros(1, 3, 16, 16)).shape[1] for width in (0.5, 1.0)}
    linear = {width: (torch.randn(3, size), torch.randn(3)) for width, size in sizes.items()}
    probes = Probes(linear, ["cat", "dog", "rat"], "pets", Run(folder).weights)
    write_probes(folder / "eval" / "pets.probes.safetensors", probes)
    return folder


@pytest.fixture(scope="module")  # not longer: tests of other modules fork
def served(run_folder):
    with serving(run_folder, workers=2) as client:
        yield client


__all__ = ["bundle", "small"]  # fixtures
