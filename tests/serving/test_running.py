"""A service that starts, stops, changes its model, and follows the load."""

import asyncio
import http.client
import shutil
import socket
import threading
import time
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import us3l
from tests.serving.services import WAIT, encoded, save_run, serving
from tests.serving.test_answers import form
from us3l.commands.main import main
from us3l.commands.serve import serve
from us3l.serving.bodies import ReceivedImage
from us3l.serving.model import ServedModel
from us3l.serving.refusals import Refusal
from us3l.serving.server import listen
from us3l.serving.service import HEADROOM, LEAST_HEADROOM, STEP, Service
from us3l.serving.settings import ServiceSettings
from us3l.system.errors import Caution

IMAGE = encoded()


def test_before_it_is_ready_it_says_so(run_folder, monkeypatch):
    go = threading.Event()
    prepare = ServedModel.prepare
    monkeypatch.setattr(ServedModel, "prepare", lambda *given: (go.wait(WAIT), prepare(*given)))
    with serving(run_folder, wait=False) as client:
        assert client.get("/health").status == 200
        for reply in (client.get("/ready"), client.post("/embed", IMAGE)):
            assert (reply.status, reply.json) == (503, {"error": "the service is not ready yet"})
            assert reply.headers["retry-after"] == "1"
        go.set()


def test_a_stop_answers_what_was_accepted(run_folder, monkeypatch):
    begun, go = threading.Event(), threading.Event()
    with serving(run_folder) as client:
        service, compute = client.service, client.service.model.compute
        expected = service.model.runtime.embed(IMAGE, 0.5)
        monkeypatch.setattr(service.model, "compute", lambda *given: (begun.set(), go.wait(WAIT), compute(*given))[2])
        replies = []
        asking = threading.Thread(target=lambda: replies.append(client.post("/embed?width=0.5", IMAGE)))
        asking.start()
        assert begun.wait(WAIT)
        client.listening.stop()
        ends = time.monotonic() + WAIT
        while client.listening.socket.fileno() >= 0 and time.monotonic() < ends:
            time.sleep(0.01)
        with pytest.raises(ConnectionRefusedError):
            client.get("/health")
        go.set()
        asking.join(WAIT)
        np.testing.assert_array_equal(np.array(replies[0].json["embeddings"], np.float32), expected)


def test_a_new_model_takes_over_while_requests_go_on(small, tmp_path):
    folder = save_run(small, tmp_path / "run")
    torch.manual_seed(7)
    other = us3l.create("resnet18", stem="cifar", base=8)
    us3l.calibrate(other, torch.randn(32, 3, 16, 16))
    other.metadata = small.metadata
    with serving(folder, workers=2) as client:
        before = client.service.model
        shutil.rmtree(folder)
        assert not client.service.reload()  # there is nothing: the old one stays
        assert client.post("/embed?width=1", IMAGE).json["model"] == before.identity
        save_run(other, folder)
        replies, done = [], threading.Event()

        def ask():
            while not done.is_set():
                replies.append(client.post("/embed?width=1", IMAGE))

        asking = [threading.Thread(target=ask) for _ in range(3)]
        for thread in asking:
            thread.start()
        assert client.service.reload()
        replies.append(client.post("/embed?width=1", IMAGE))
        done.set()
        for thread in asking:
            thread.join(WAIT)
        after = client.service.model
        expected = {model.identity: model.runtime.embed(IMAGE, 1.0) for model in (before, after)}
        assert len(expected) == 2
        assert replies[-1].status == 200
        assert after.identity in {reply.json["model"] for reply in replies}
        for reply in replies:
            found = np.array(reply.json["embeddings"], np.float32)
            np.testing.assert_array_equal(found, expected[reply.json["model"]])
        assert b'us3l_reloads_total{result="failed"} 1.0' in client.get("/metrics").body


def answered(service, count, **asked):
    """The widths of that many requests, one after another; those refused are None."""

    async def ask():
        found = []
        for _ in range(count):
            try:
                found.append((await service.answer([ReceivedImage(IMAGE, 0.0)], "features", **asked)).width)
            except Refusal:
                found.append(None)
        return found

    return asyncio.run(ask())


@pytest.fixture
def service(run_folder):
    settings = ServiceSettings(target_ms=1e6, deadline_ms=1e6, batch_size=1)
    found = Service(lambda: ServedModel(run_folder, settings, "torch"), settings)
    found.prepare()
    yield found
    found.stop()


def test_the_width_falls_when_requests_miss_the_target(service):
    controller = service.model.controllers["features"]
    assert answered(service, 3) == [1.0] * 3
    controller.target_ms = 1e-6  # which none can keep
    widths = answered(service, 40)
    assert widths[-1] == 0.25
    assert widths == sorted(widths, reverse=True)
    assert answered(service, 1, width=1.0) == [1.0]  # a request that names its width gets it


def test_refused_requests_make_it_narrower_too(service, monkeypatch):
    controller = service.model.controllers["features"]
    controller.target_ms = 1e-6
    monkeypatch.setattr(service.scheduler, "_wait_ms", lambda narrow: 1e9 + narrow)
    assert answered(service, 40) == [None] * 40
    assert controller.width == 0.25


HEAD = b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\nContent-Length: %d\r\n\r\n" % len(IMAGE)


def test_what_cannot_be_in_time_is_refused_before_it_is_read(run_folder, monkeypatch):
    with serving(run_folder, target_ms=1e5, deadline_ms=1e6, body_seconds=0.3) as client:
        service = client.service
        assert client.post("/embed", IMAGE).status == 200
        monkeypatch.setattr(service.scheduler, "_wait_ms", lambda narrow: 9e4 + narrow)
        monkeypatch.setattr(type(service.scheduler), "idle", False)
        reply = client.post("/embed", IMAGE)
        assert (reply.status, reply.json) == (503, {"error": "the service is busy"})
        assert reply.headers["retry-after"] == "91"
        assert client.post("/embed?width=1", IMAGE).status == 200  # has the deadline's time
        assert client.post("/embed", *form([IMAGE])).status == 503  # could have had longer, but has one image
        with socket.create_connection(("127.0.0.1", client.port), timeout=WAIT) as connection:
            connection.sendall(HEAD)
            assert b"503 Service Unavailable" in connection.recv(4096)  # without its body
        metrics = client.get("/metrics").body
        assert b'us3l_refusals_total{cause="busy"} 2.0' in metrics
        assert b'us3l_refusals_total{cause="deadline"} 1.0' in metrics


def test_requests_that_are_being_received_count_before_they_are_in_the_queue(service):
    service.settings = ServiceSettings(target_ms=100.0, workers=1)
    service.model.latencies["features"] = dict.fromkeys(service.model.latencies["features"], 10.0)

    def accepted(receiving, lag_ms=0.0):
        service.scheduler.receiving, service.lag_ms = receiving, lag_ms
        try:
            service.check_load("features", one_image=True)
        except Refusal:
            return False
        return True

    assert [accepted(receiving) for receiving in (0, 7, 8)] == [True, True, False]  # 10 ms each, in 80 ms
    assert [accepted(1, lag_ms) for lag_ms in (50.0, 70.0)] == [True, False]  # for which they have waited already
    assert accepted(0, 70.0)  # nobody is before it
    service.scheduler.receiving, service.lag_ms = 0, 0.0


def test_it_accepts_less_while_its_guesses_are_too_low(service):
    job = SimpleNamespace(width=0.25, model=service.model, task="features", images=[IMAGE], took_ms=1e9)
    for _ in range(10):
        service._adapt(job)
    assert service.headroom == pytest.approx(HEADROOM - 10 * STEP)
    for _ in range(100):
        service._adapt(job)
    assert service.headroom == LEAST_HEADROOM
    job.took_ms = 1.0
    service._adapt(job)
    assert LEAST_HEADROOM < service.headroom < LEAST_HEADROOM + STEP
    job.width = 1.0  # the load has fallen, the width has risen
    service._adapt(job)
    assert service.headroom == HEADROOM


def test_a_service_of_one_width_stays_there(run_folder):
    with serving(run_folder, width=0.5, target_ms=1e6) as client:
        assert client.post("/embed", IMAGE).json["width"] == 0.5
        assert client.get("/widths").json["tasks"]["predict"]["width"] == 0.5


def test_a_job_that_hangs_is_given_up(service, monkeypatch):
    monkeypatch.setattr("us3l.serving.service.HANGING", 0.05)
    go = threading.Event()
    monkeypatch.setattr(service.model, "compute", lambda *_: go.wait(WAIT))
    service.settings = ServiceSettings(target_ms=0.01, deadline_ms=0.01)
    assert answered(service, 1, width=1.0) == [None]
    go.set()


def test_a_port_that_is_taken(run_folder, capsys):
    taken = listen("127.0.0.1", 0)
    number = taken.getsockname()[1]
    assert main(["serve", str(run_folder), "--port", str(number)]) == 2
    error = capsys.readouterr().err
    assert f"cannot listen on 127.0.0.1, port {number}: Address already in use; choose another --port" in error
    taken.close()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["nowhere"], "nowhere is not a folder: give that of a run, a model or a bundle"),
        (["RUN", "--width", "3"], "there is no width 3 for features"),
        (["RUN", "--port", "70000"], "--port must be 0 to 65535"),
        (["RUN", "--backend", "onnx"], "onnx runs exported files"),
        (["RUN", "--target-ms", "0"], "--target-ms must be above 0"),
        (["RUN", "--token-file", "nowhere"], "nowhere"),
    ],
)
def test_mistakes_on_the_command_line(run_folder, capsys, arguments, reason):
    assert main(["serve", *(str(run_folder) if word == "RUN" else word for word in arguments)]) == 2
    assert reason in capsys.readouterr().err


def test_without_the_extra_one_line_says_what_to_install(run_folder, capsys, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "python_multipart", None)
    assert main(["serve", str(run_folder)]) == 2
    assert "the package python_multipart is missing: pip install 'us3l[serve]'" in capsys.readouterr().err


def test_others_may_connect_only_if_told_and_are_warned_of(run_folder):
    token = "a token of some length"
    with pytest.warns(Caution, match="can be reached from other machines"):
        opened = [serve(run_folder, port=0, host="0.0.0.0")]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened += [serve(run_folder, token=token, port=0, host="0.0.0.0"), serve(run_folder, port=0)]
    assert [each.address.rpartition(":")[0] for each in opened] == ["http://0.0.0.0"] * 2 + ["http://127.0.0.1"]
    for each in opened:
        each.socket.close()
        each.service.stop()


def test_connections_stay_open(served):
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=WAIT)
    for _ in range(3):
        connection.request("POST", "/embed", IMAGE, {"Content-Type": "image/png"})
        assert connection.getresponse().read()
    own = connection.sock.getsockname()
    connection.request("POST", "/embed", b"nothing", {"Content-Type": "image/png"})
    assert connection.getresponse().read()
    assert connection.sock.getsockname() == own
    connection.close()


def test_answers_are_sent_at_once(served):
    """A listening socket that does not name its protocol made each answer 40 ms slower."""
    assert served.listening.socket.proto == socket.IPPROTO_TCP


def test_a_client_that_leaves(served):
    with socket.create_connection(("127.0.0.1", served.port), timeout=WAIT) as connection:
        connection.sendall(HEAD + IMAGE)
    assert served.post("/embed", IMAGE).status == 200
